"""Starting values: the same on every device, for every sharding, from the seed and each parameter's name.

Modules say how they start: `plan_init()` describes the random and constant parameters they own directly, `reset()`
brings everything else (tables, biases, counters, ties) into its first state, and `reset_at(path)` what depends on the
module's path in the model. Of torch's own layers the usual is known.
"""

from dataclasses import dataclass

import torch
from torch import nn

from monograph.errors import ConfigError
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
STD = 0.02
"""Of the weights of torch's own layers."""


def plan_init(model: nn.Module) -> dict[str, InitSpec]:
    """How each parameter of the model starts, under the name it has in the whole model (the first, when tied)."""
    plan: dict[str, InitSpec] = {}
    for path, module in model.named_modules():
        describe = getattr(module, "plan_init", None)
        starts = describe() if describe is not None else plan_torch_layer(module)
        plan.update({f"{path}.{name}".lstrip("."): start for name, start in starts.items()})
    names = [name for name, _ in model.named_parameters()]
    missing = [name for name in names if name not in plan]
    if missing:
        raise ConfigError(
            f"no module says how to initialize {', '.join(missing[:8])}",
            why="initial values are the same on every mesh, so they are drawn by name and position",
            do='define plan_init() in the module that owns them: return {"weight": Normal(0.02)}',
        )
    return {name: plan[name] for name in names}


def plan_torch_layer(module: nn.Module) -> dict[str, InitSpec]:
    """How a layer of torch's starts: weights as in GPT-2, norms at one, biases at zero; nothing for other modules."""
    if isinstance(module, nn.Linear | nn.Embedding):
        weight: InitSpec = Normal(STD)
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        weight = Constant(1.0)
    else:
        return {}
    own = {"weight": weight, "bias": Constant(0.0)}
    return {name: own[name] for name, _ in module.named_parameters(recurse=False)}


def reset(model: nn.Module) -> None:
    """Bring tables, biases, counters and tied weights into their first state; leaves other parameters alone."""
    for path, module in model.named_modules():
        restore, restore_at = getattr(module, "reset", None), getattr(module, "reset_at", None)
        if restore is not None:
            restore()
        if restore_at is not None:
            restore_at(path)


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
    made: dict[int, nn.Parameter] = {}  # by the parameter it replaces: ties stay ties
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                if id(parameter) not in made:
                    empty = torch.empty(parameter.shape, dtype=dtype, device=device)
                    made[id(parameter)] = nn.Parameter(empty, requires_grad=parameter.requires_grad)
                setattr(module, name, made[id(parameter)])
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty_like(buffer, device=device))
    return model
