"""What an optimizer is: named parameters, named state, one update. A rule of your own defines `update` alone."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from monograph.config.configurable import Configurable
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.train.optimizer_config import OptimizerConfig

CLIP_EPS = 1e-6
"""What torch adds to a norm before it divides by it."""


class Optimizer(Configurable):
    """The shared work of optimizers: state made up front, clipping, the finite check, checkpoints.

    A subclass names its `state_names`, says whether it is `elementwise`, and defines `update` for one parameter. On a
    mesh that shards parameters these are local shards, so the rule must be elementwise there. State is shaped like its
    parameter: a checkpoint knows its layout from the parameter, and a run can be resumed on another mesh.
    """

    Config = OptimizerConfig
    state_names: ClassVar[tuple[str, ...]] = ()
    """Tensors kept for each parameter, shaped like it, zero at first."""
    elementwise: ClassVar[bool | None] = None
    """Whether the update of an element depends on that element, its gradient and its state alone. A rule of your own
    has to say so where parameters are sharded; one that is not, such as Muon, trains on whole parameters only."""

    def __init__(
        self,
        config: OptimizerConfig,
        *,
        parameters: Mapping[str, Tensor],
        decayed: Collection[str] | None = None,
        weight_cache: CastWeightCache | None = None,
    ) -> None:
        """`decayed` names the parameters that weight decay shrinks; all that are no vectors when not given."""
        self.config: Any = config
        self.parameters, self.weight_cache = dict(parameters), weight_cache
        if decayed is None:
            decayed = {name for name, parameter in parameters.items() if parameter.ndim >= 2}
        self._decayed = {id(parameter) for name, parameter in parameters.items() if name in decayed}
        self.updates = 0
        """Updates made, the current one included: for bias correction."""
        self._broken: Tensor | None = None
        self._state = {
            name: {kind: torch.zeros_like(parameter, requires_grad=False) for kind in self.state_names}
            for name, parameter in self.parameters.items()
        }

    def update(self, parameter: Tensor, gradient: Tensor, state: Mapping[str, Tensor], lr: float) -> None:
        """Change one parameter and its state in place; the gradient is clipped already, and may be overwritten."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define update(parameter, gradient, state, lr)")

    def is_decayed(self, parameter: Tensor) -> bool:
        """Whether weight decay shrinks this parameter: no norm, and no bias."""
        return id(parameter) in self._decayed

    def step(self, lr: float, *, loss: Tensor, grad_norm: Tensor, max_norm: float = 0.0) -> None:
        """Make one update with gradients of at most `max_norm`, or none once a loss or a gradient was not finite."""
        self.expect_update()
        if self.judge(loss, grad_norm).item():
            return
        self.updates += 1
        excess = find_excess_norm(grad_norm, max_norm)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                gradient = parameter.grad
                if gradient is not None:
                    if excess is not None:
                        gradient.div_(excess)
                    self.update(parameter, gradient.to(parameter.dtype), self._state[name], lr)

    def expect_update(self) -> None:
        """Before parameters change: copies of them are out of date, unless this optimizer writes them as well."""
        if self.weight_cache is not None:
            self.weight_cache.expect_update()

    @property
    def refusal(self) -> Tensor | None:
        """What `judge` said last: 1 on the device where the update was not made; None before the first."""
        return self._broken

    def judge(self, loss: Tensor, grad_norm: Tensor) -> Tensor:
        """1 on the device once a loss or a gradient norm was not finite, else 0; it stays 1 from then on."""
        broken = (~(torch.isfinite(grad_norm) & torch.isfinite(loss))).float()
        self._broken = broken if self._broken is None else torch.maximum(self._broken, broken)
        return self._broken

    def narrow_gradients(self) -> None:
        """Round sums that are wider than their parameters, for rules that take gradients of the same dtype only."""
        for parameter in self.parameters.values():
            if parameter.grad is not None and parameter.grad.dtype is not parameter.dtype:
                parameter.grad = parameter.grad.to(parameter.dtype)

    def clear_gradients(self) -> None:
        """Drop the gradients; the next backward allocates them anew."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def state(self) -> dict[tuple[str, str], Tensor]:
        """The state of a checkpoint by (kind, parameter name); each is shaped and laid out like its parameter."""
        return {(kind, name): self._state[name][kind] for kind in self.state_names for name in self.parameters}

    def set_updates(self, count: int) -> None:
        """Continue after `count` updates."""
        self.updates = count

    def compile(self, backend: Any) -> None:
        """Update with compiled kernels; for those whose Config says has_compiled_form."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define compile(backend)")


def find_excess_norm(grad_norm: Tensor, max_norm: float) -> Tensor | None:
    """What gradients are divided by so that their norm is at most `max_norm`; None when nothing is clipped."""
    return ((grad_norm + CLIP_EPS) / max_norm).clamp(min=1.0) if max_norm else None
