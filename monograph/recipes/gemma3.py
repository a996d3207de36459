"""Recipes of the Gemma 3 family (text): sequences of 8192 tokens."""

from monograph.models.gemma3 import sizes
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig


def gemma3_debugmodel() -> TrainerConfig:
    """A small Gemma 3 with every feature of the large ones, on the built-in corpus: a minute on a laptop."""
    return make_debug_run("gemma3_debugmodel", sizes.gemma3_debugmodel())


def gemma3_1b() -> TrainerConfig:
    """Gemma 3 1B, 4 million tokens an update."""
    return make_published_run("gemma3_1b", sizes.gemma3_1b(), seq_len=8192, global_batch_size=512, lr=4e-4)
