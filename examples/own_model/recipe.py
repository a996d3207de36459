"""A run of the model: a recipe that exists, with another model in it."""

from examples.own_model.config import Starcoder2Config
from monograph.recipes.llama3 import llama3_debugmodel
from monograph.train.config import TrainerConfig


def starcoder2_debugmodel() -> TrainerConfig:
    """A small Starcoder 2 on the built-in corpus: a minute on a laptop."""
    config = llama3_debugmodel()
    config.model = Starcoder2Config()
    config.job.dump_folder = "outputs/starcoder2_debugmodel"
    return config
