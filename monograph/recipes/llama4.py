"""Recipes of the Llama 4 family: sequences of 8192 tokens."""

from monograph.models.llama4 import sizes
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig


def llama4_debugmodel() -> TrainerConfig:
    """A small Llama 4 with every feature of the large ones, on the built-in corpus: a minute on a laptop."""
    return make_debug_run("llama4_debugmodel", sizes.llama4_debugmodel())


def llama4_scout() -> TrainerConfig:
    """Llama 4 Scout (text), 16 experts, 16 million tokens an update."""
    return make_published_run("llama4_scout", sizes.llama4_scout(), seq_len=8192, global_batch_size=2048, lr=2e-4)


def llama4_maverick() -> TrainerConfig:
    """Llama 4 Maverick (text), 128 experts in every second layer, 16 million tokens an update."""
    return make_published_run("llama4_maverick", sizes.llama4_maverick(), seq_len=8192, global_batch_size=2048, lr=2e-4)
