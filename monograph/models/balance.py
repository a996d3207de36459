"""Even load without an auxiliary loss: between steps, experts that got too few tokens become easier to choose."""

import torch

from monograph.models.decoder import Decoder
from monograph.models.router import Router


@torch.no_grad()
def update_expert_bias(model: Decoder, rate: float) -> None:
    """Move every selection bias by `rate` towards an even load, from the tokens counted since the last call.

    Call once before each optimizer step, with the counts of the whole global batch in `model.expert_load`; the counts
    are set to zero. The moves of a layer sum to zero, so biases do not drift together.
    """
    if model.expert_load is None:
        return
    routers = [module for module in model.modules() if isinstance(module, Router)]
    for router, load in zip(routers, model.expert_load.unbind(), strict=True):
        if router.expert_bias is not None and rate:
            load = load.to(torch.float32)
            move = (load.mean() - load).sign()
            router.expert_bias.add_(move - move.mean(), alpha=rate)
    model.expert_load.zero_()
