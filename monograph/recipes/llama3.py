"""Recipes of the Llama 3 family: sequences of 8192 tokens, batches that grow with the model."""

from monograph.models.llama3 import sizes
from monograph.models.score_mods import add_alibi
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig


def llama3_debugmodel() -> TrainerConfig:
    """A small Llama 3 on the built-in corpus: a minute on a laptop."""
    return make_debug_run("llama3_debugmodel", sizes.llama3_debugmodel())


def llama3_debugmodel_flex() -> TrainerConfig:
    """The same with FlexAttention, packed documents kept apart, and scores that fall with distance (ALiBi)."""
    model = sizes.llama3_debugmodel()
    attention = model.attention.replace(kernel="flex", score_mod=add_alibi)
    return make_debug_run("llama3_debugmodel_flex", model.replace(attention=attention, mask="document"))


def llama3_1b() -> TrainerConfig:
    """Llama 3.2 1B, 4 million tokens an update."""
    return make_published_run("llama3_1b", sizes.llama3_1b(), seq_len=8192, global_batch_size=512, lr=3e-4)


def llama3_3b() -> TrainerConfig:
    """Llama 3.2 3B, 4 million tokens an update."""
    return make_published_run("llama3_3b", sizes.llama3_3b(), seq_len=8192, global_batch_size=512, lr=3e-4)


def llama3_8b() -> TrainerConfig:
    """Llama 3.1 8B, 4 million tokens an update."""
    return make_published_run("llama3_8b", sizes.llama3_8b(), seq_len=8192, global_batch_size=512, lr=3e-4)


def llama3_70b() -> TrainerConfig:
    """Llama 3.1 70B, 8 million tokens an update."""
    return make_published_run("llama3_70b", sizes.llama3_70b(), seq_len=8192, global_batch_size=1024, lr=1.5e-4)


def llama3_405b() -> TrainerConfig:
    """Llama 3.1 405B, 16 million tokens an update and the longer warmup its authors report."""
    return make_published_run(
        "llama3_405b",
        sizes.llama3_405b(),
        seq_len=8192,
        global_batch_size=2048,
        lr=8e-5,
        warmup_steps=8000,
        min_factor=0.01,
    )
