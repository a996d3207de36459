"""Recipes of the Gemma 2 family: sequences of 8192 tokens, twice the window."""

from monograph.models.gemma2 import sizes
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig


def gemma2_debugmodel() -> TrainerConfig:
    """A small Gemma 2 with every feature of the large ones, on the built-in corpus: a minute on a laptop."""
    return make_debug_run("gemma2_debugmodel", sizes.gemma2_debugmodel())


def gemma2_2b() -> TrainerConfig:
    """Gemma 2 2B, 4 million tokens an update."""
    return make_published_run("gemma2_2b", sizes.gemma2_2b(), seq_len=8192, global_batch_size=512, lr=3e-4)


def gemma2_9b() -> TrainerConfig:
    """Gemma 2 9B, 8 million tokens an update."""
    return make_published_run("gemma2_9b", sizes.gemma2_9b(), seq_len=8192, global_batch_size=1024, lr=2e-4)


def gemma2_27b() -> TrainerConfig:
    """Gemma 2 27B, 8 million tokens an update."""
    return make_published_run("gemma2_27b", sizes.gemma2_27b(), seq_len=8192, global_batch_size=1024, lr=1.5e-4)
