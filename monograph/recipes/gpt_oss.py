"""Recipes of the gpt_oss family: sequences of 4096 tokens, the context before it is stretched."""

from monograph.models.gpt_oss import sizes
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig


def gpt_oss_debugmodel() -> TrainerConfig:
    """A small gpt_oss with every feature of the large ones, on the built-in corpus: a minute on a laptop."""
    return make_debug_run("gpt_oss_debugmodel", sizes.gpt_oss_debugmodel())


def gpt_oss_20b() -> TrainerConfig:
    """gpt-oss-20b, 32 experts, 8 million tokens an update."""
    return make_published_run("gpt_oss_20b", sizes.gpt_oss_20b(), seq_len=4096, global_batch_size=2048, lr=3e-4)


def gpt_oss_120b() -> TrainerConfig:
    """gpt-oss-120b, 128 experts, 16 million tokens an update."""
    return make_published_run("gpt_oss_120b", sizes.gpt_oss_120b(), seq_len=4096, global_batch_size=4096, lr=2e-4)
