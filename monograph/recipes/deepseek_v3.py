"""Recipes of the DeepSeek family (V2-Lite, V2, V3): batches and rates as their reports give them."""

from monograph.models.deepseek_v3 import sizes
from monograph.models.score_mods import cap_softly
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig


def deepseek_v3_debugmodel() -> TrainerConfig:
    """A small DeepSeek-V3 with every feature of the large one, on the built-in corpus: a minute on a laptop."""
    return make_debug_run("deepseek_v3_debugmodel", sizes.deepseek_v3_debugmodel())


def deepseek_v3_debugmodel_flex() -> TrainerConfig:
    """The same with FlexAttention, packed documents kept apart, and logit soft-capping of attention scores."""
    model = sizes.deepseek_v3_debugmodel()
    attention = model.attention.replace(kernel="flex", score_mod=cap_softly)
    return make_debug_run("deepseek_v3_debugmodel_flex", model.replace(attention=attention, mask="document"))


def deepseek_v3_16b() -> TrainerConfig:
    """DeepSeek-V2-Lite, 19 million tokens an update."""
    return make_published_run(
        "deepseek_v3_16b", sizes.deepseek_v3_16b(), seq_len=4096, global_batch_size=4608, lr=4.2e-4
    )


def deepseek_v3_236b() -> TrainerConfig:
    """DeepSeek-V2, 38 million tokens an update."""
    return make_published_run(
        "deepseek_v3_236b", sizes.deepseek_v3_236b(), seq_len=4096, global_batch_size=9216, lr=2.4e-4
    )


def deepseek_v3_671b() -> TrainerConfig:
    """DeepSeek-V3, 63 million tokens an update."""
    return make_published_run(
        "deepseek_v3_671b", sizes.deepseek_v3_671b(), seq_len=4096, global_batch_size=15360, lr=2.2e-4
    )
