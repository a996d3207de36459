"""Recipes of the Qwen2.5 family: sequences of 4096 tokens."""

from monograph.models.qwen2_5 import sizes
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig


def qwen2_5_debugmodel() -> TrainerConfig:
    """A small Qwen2.5 on the built-in corpus: a minute on a laptop."""
    return make_debug_run("qwen2_5_debugmodel", sizes.qwen2_5_debugmodel())


def qwen2_5_0_5b() -> TrainerConfig:
    """Qwen2.5-0.5B, 4 million tokens an update."""
    return make_published_run("qwen2_5_0_5b", sizes.qwen2_5_0_5b(), seq_len=4096, global_batch_size=1024, lr=0.0006)


def qwen2_5_1_5b() -> TrainerConfig:
    """Qwen2.5-1.5B, 4 million tokens an update."""
    return make_published_run("qwen2_5_1_5b", sizes.qwen2_5_1_5b(), seq_len=4096, global_batch_size=1024, lr=0.0004)


def qwen2_5_3b() -> TrainerConfig:
    """Qwen2.5-3B, 4 million tokens an update."""
    return make_published_run("qwen2_5_3b", sizes.qwen2_5_3b(), seq_len=4096, global_batch_size=1024, lr=0.0003)


def qwen2_5_7b() -> TrainerConfig:
    """Qwen2.5-7B, 4 million tokens an update."""
    return make_published_run("qwen2_5_7b", sizes.qwen2_5_7b(), seq_len=4096, global_batch_size=1024, lr=0.0003)


def qwen2_5_14b() -> TrainerConfig:
    """Qwen2.5-14B, 8 million tokens an update."""
    return make_published_run("qwen2_5_14b", sizes.qwen2_5_14b(), seq_len=4096, global_batch_size=2048, lr=0.0002)


def qwen2_5_32b() -> TrainerConfig:
    """Qwen2.5-32B, 8 million tokens an update."""
    return make_published_run("qwen2_5_32b", sizes.qwen2_5_32b(), seq_len=4096, global_batch_size=2048, lr=0.00015)


def qwen2_5_72b() -> TrainerConfig:
    """Qwen2.5-72B, 16 million tokens an update."""
    return make_published_run("qwen2_5_72b", sizes.qwen2_5_72b(), seq_len=4096, global_batch_size=4096, lr=0.0001)
