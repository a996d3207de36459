"""Starting values: the same on every device, for every sharding, from the seed and each parameter's name.

Modules say how they start: `plan_init()` describes the random and constant parameters they own directly, `reset()`
brings everything else (tables, biases, counters, ties) into its first state.
"""

from dataclasses import dataclass

import torch
from torch import nn

from monograph.models.random_normal import draw


@dataclass(frozen=True)
class Normal:
    """Drawn from a normal distribution around zero, cut at three standard deviations."""

    std: float


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float


InitSpec = Normal | Constant


def plan_init(model: nn.Module) -> dict[str, InitSpec]:
    """How each parameter of the model starts, under the name it has in the whole model (the first, when tied)."""
    plan: dict[str, InitSpec] = {}
    for path, module in model.named_modules():
        describe = getattr(module, "plan_init", None)
        if describe is not None:
            plan.update({f"{path}.{name}".lstrip("."): start for name, start in describe().items()})
    names = [name for name, _ in model.named_parameters()]
    missing = [name for name in names if name not in plan]
    if missing:
        raise TypeError(f"no module says how these parameters start: {', '.join(missing)}")
    return {name: plan[name] for name in names}


def reset(model: nn.Module) -> None:
    """Bring tables, biases, counters and tied weights into their first state; leaves other parameters alone."""
    for module in model.modules():
        restore = getattr(module, "reset", None)
        if restore is not None:
            restore()


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Give every parameter and buffer of a model (built on any device, or emptied from meta) its first value."""
    reset(model)
    plan = plan_init(model)
    for name, parameter in model.named_parameters():
        start = plan[name]
        if isinstance(start, Constant):
            parameter.fill_(start.value)
        else:
            width = parameter.shape[-1]
            draw(parameter.view(-1, width), seed, name, width=width, std=start.std)


def materialize(model: nn.Module, *, device: torch.device | str, dtype: torch.dtype) -> nn.Module:
    """Give a model built on the meta device memory: parameters in `dtype`, buffers in the dtype they were made with.

    (`model.to(dtype)` would round the experts' biases and the rotary table too.) Values are undefined until
    `initialize`, or `reset` and a load.
    """
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                empty = torch.empty(parameter.shape, dtype=dtype, device=device)
                setattr(module, name, nn.Parameter(empty, requires_grad=parameter.requires_grad))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty_like(buffer, device=device))
    return model
