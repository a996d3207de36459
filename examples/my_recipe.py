"""A recipe of your own: take one that exists, change fields, give it a name.

monograph config examples.my_recipe:wide_and_shallow
monograph train examples.my_recipe:wide_and_shallow --training.steps 50
"""

from monograph.recipes.llama3 import llama3_debugmodel
from monograph.train.config import TrainerConfig


def wide_and_shallow() -> TrainerConfig:
    """The small Llama 3 with fewer, wider layers."""
    config = llama3_debugmodel()
    config.model.n_layers = 3
    config.model.dim = 384
    config.model.feed_forward.hidden_dim = 1024
    config.job.dump_folder = "outputs/wide_and_shallow"
    return config
