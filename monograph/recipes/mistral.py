"""Recipes of the Mistral family: sequences of 8192 tokens, twice the window of the first model."""

from monograph.models.mistral import sizes
from monograph.recipes.starting_points import make_debug_run, make_published_run
from monograph.train.config import TrainerConfig


def mistral_debugmodel() -> TrainerConfig:
    """A small Mistral with windows on the built-in corpus: a minute on a laptop."""
    return make_debug_run("mistral_debugmodel", sizes.mistral_debugmodel())


def mistral_7b() -> TrainerConfig:
    """Mistral 7B v0.1, windows of 4096 keys, 4 million tokens an update."""
    return make_published_run("mistral_7b", sizes.mistral_7b(), seq_len=8192, global_batch_size=512, lr=3e-4)


def mistral_nemo_12b() -> TrainerConfig:
    """Mistral Nemo 12B, 8 million tokens an update."""
    return make_published_run(
        "mistral_nemo_12b", sizes.mistral_nemo_12b(), seq_len=8192, global_batch_size=1024, lr=2e-4
    )
