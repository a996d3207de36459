"""Recipes of the Llama 4 family: sequences of 8192 tokens, of at most 262144, the longest in pre-training."""

from monograph.models.llama4 import sizes
from monograph.models.llama4.config import Llama4Config
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig

TRAINED_LENGTH = 262144
"""Published configs allow up to forty times as many positions, and tables of positions have a row for each."""


def llama4_debugmodel() -> TrainerConfig:
    """A small Llama 4 with every feature of the large ones, on the built-in corpus: a minute on a laptop."""
    return make_debug_run("llama4_debugmodel", sizes.llama4_debugmodel())


def llama4_scout() -> TrainerConfig:
    """Llama 4 Scout (text), 16 experts, 16 million tokens an update."""
    return _make_run("llama4_scout", sizes.llama4_scout())


def llama4_maverick() -> TrainerConfig:
    """Llama 4 Maverick (text), 128 experts in every second layer, 16 million tokens an update."""
    return _make_run("llama4_maverick", sizes.llama4_maverick())


def _make_run(name: str, model: Llama4Config) -> TrainerConfig:
    shorter = model.replace(rope=model.rope.replace(max_seq_len=TRAINED_LENGTH))
    return make_published_run(name, shorter, seq_len=8192, global_batch_size=2048, lr=2e-4)
