"""AdamW as its authors write it: what updates are compared with. It shares no line with the optimizers that train."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from monograph.train.optimizer_config import AdamWConfig

MOMENTS = ("exp_avg", "exp_avg_sq")


class PlainAdamW:
    """Whole parameters, one after the other, in fp64; what is kept is rounded to fp32, as training keeps it."""

    def __init__(self, config: AdamWConfig, *, parameters: Mapping[str, Tensor], decayed: Collection[str]) -> None:
        self.config, self.parameters, self.decayed, self.updates = config, dict(parameters), set(decayed), 0
        self.moments = {
            (kind, name): torch.zeros_like(value, dtype=torch.float32, requires_grad=False)
            for kind in MOMENTS
            for name, value in self.parameters.items()
        }

    @torch.no_grad()
    def step(self, lr: float, **_: Tensor) -> None:
        """One update with the gradients as they are: clipped before, if at all."""
        self.updates += 1
        first, second = self.config.beta1, self.config.beta2
        for name, parameter in self.parameters.items():
            if parameter.grad is None:
                continue
            weight, gradient = parameter.double(), parameter.grad.double()
            means = [self.moments[kind, name] for kind in MOMENTS]
            mean = first * means[0].double() + (1 - first) * gradient
            square = second * means[1].double() + (1 - second) * gradient.square()
            decay = self.config.weight_decay if name in self.decayed else 0.0
            root = (square / (1 - second**self.updates)).sqrt() + self.config.eps
            move = mean / (1 - first**self.updates) / root + decay * weight
            for kept, value in zip((parameter, *means), (weight - lr * move, mean, square), strict=True):
                kept.copy_(value)

    def clear_gradients(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def state(self) -> dict[tuple[str, str], Tensor]:
        """The moments by kind and parameter."""
        return self.moments
