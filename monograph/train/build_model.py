"""The model of a run as a structure, before it is sharded."""

import torch

from monograph.models.freeze import freeze
from monograph.models.init import reset
from monograph.models.model import Model
from monograph.train.config import TrainerConfig


def build_model(config: TrainerConfig, device: torch.device) -> Model:
    """The model's structure: parameters on the meta device (shards come later), buffers real and initialized."""
    with torch.device("meta"):
        model: Model = config.plan_model().build()
    freeze(model, config.training.freeze)
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype, device=device))
    reset(model)
    return model
