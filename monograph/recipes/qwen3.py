"""Recipes of the Qwen3 family, dense and mixture of experts: sequences of 4096 tokens."""

from monograph.models.qwen3 import sizes
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig


def qwen3_debugmodel() -> TrainerConfig:
    """A small dense Qwen3 on the built-in corpus: a minute on a laptop."""
    return make_debug_run("qwen3_debugmodel", sizes.qwen3_debugmodel())


def qwen3_0_6b() -> TrainerConfig:
    """Qwen3-0.6B, 4 million tokens an update."""
    return make_published_run("qwen3_0_6b", sizes.qwen3_0_6b(), seq_len=4096, global_batch_size=1024, lr=6e-4)


def qwen3_1_7b() -> TrainerConfig:
    """Qwen3-1.7B, 4 million tokens an update."""
    return make_published_run("qwen3_1_7b", sizes.qwen3_1_7b(), seq_len=4096, global_batch_size=1024, lr=4e-4)


def qwen3_4b() -> TrainerConfig:
    """Qwen3-4B, 4 million tokens an update."""
    return make_published_run("qwen3_4b", sizes.qwen3_4b(), seq_len=4096, global_batch_size=1024, lr=3e-4)


def qwen3_8b() -> TrainerConfig:
    """Qwen3-8B, 4 million tokens an update."""
    return make_published_run("qwen3_8b", sizes.qwen3_8b(), seq_len=4096, global_batch_size=1024, lr=3e-4)


def qwen3_14b() -> TrainerConfig:
    """Qwen3-14B, 8 million tokens an update."""
    return make_published_run("qwen3_14b", sizes.qwen3_14b(), seq_len=4096, global_batch_size=2048, lr=2e-4)


def qwen3_32b() -> TrainerConfig:
    """Qwen3-32B, 8 million tokens an update."""
    return make_published_run("qwen3_32b", sizes.qwen3_32b(), seq_len=4096, global_batch_size=2048, lr=1.5e-4)


def qwen3_debugmodel_moe() -> TrainerConfig:
    """A small Qwen3 with 8 experts on the built-in corpus: a minute on a laptop."""
    return make_debug_run("qwen3_debugmodel_moe", sizes.qwen3_debugmodel_moe())


def qwen3_30b_a3b() -> TrainerConfig:
    """Qwen3-30B-A3B, 128 experts, 8 million tokens an update."""
    return make_published_run("qwen3_30b_a3b", sizes.qwen3_30b_a3b(), seq_len=4096, global_batch_size=2048, lr=3e-4)


def qwen3_235b_a22b() -> TrainerConfig:
    """Qwen3-235B-A22B, 128 experts, 16 million tokens an update."""
    return make_published_run("qwen3_235b_a22b", sizes.qwen3_235b_a22b(), seq_len=4096, global_batch_size=4096, lr=2e-4)
