"""AdamW parameter by parameter, each by one call that reads and writes every number once."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.layer import explained
from monograph.kernels.update import Update
from monograph.train.rounding_keys import RoundingKeys

MOMENTS = ("exp_avg", "exp_avg_sq")
REMAINDER = "remainder"
"""What a bf16 parameter lacks of its fp32 master, where that is stored."""


class SinglePass:
    """An update of every parameter by a function of our own, on the state of torch's AdamW.

    Everything that changes from step to step is a tensor: a rate given as a number would be compiled in. Nothing is
    read on the host.
    """

    def __init__(
        self,
        optimizer: torch.optim.AdamW,
        parameters: Mapping[str, Tensor],
        function: Update,
        weight_cache: CastWeightCache | None = None,
        rounding: RoundingKeys | None = None,
    ) -> None:
        self.optimizer, self.weight_cache, self.rounding = optimizer, weight_cache, rounding
        self._function = function
        device = next(iter(parameters.values())).device
        # Integers: the key of an update's random bits counts on from it, and fp32 counts to 2**24.
        self.steps = torch.zeros(len(parameters), dtype=torch.int64, device=device)
        for index, parameter in enumerate(parameters.values()):
            state = optimizer.state[parameter]
            self.steps[index] = state["step"]
            state["step"] = self.steps[index]
        self.names = {id(parameter): name for name, parameter in parameters.items()}
        self.indices = {id(parameter): index for index, parameter in enumerate(parameters.values())}

    def __call__(self, excess: Tensor | None, broken: Tensor) -> None:
        """One update of every parameter that has a gradient; none when broken."""
        device = self.steps.device
        with torch.no_grad(), explained("the optimizer"):
            self.count(broken)
            beta1, beta2 = self.optimizer.param_groups[0]["betas"]
            scale = torch.ones((), device=device) if excess is None else excess
            steps = self.steps.float()
            corrections = (1 - beta1**steps).unbind(), (1 - beta2**steps).unbind()
            random: Sequence[tuple[Tensor | None, Tensor | None]] = [(None, None)] * len(self.names)
            if self.rounding is not None:
                random = self.rounding.draw(self.steps)
            written: list[str] = []
            for group in self.optimizer.param_groups:
                rate, decay = (_number(x, device) for x in (group["lr"], 1 - group["lr"] * group["weight_decay"]))
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        index, state = self.indices[id(parameter)], self.optimizer.state[parameter]
                        gradient = parameter.grad.contiguous()
                        tensors = (parameter, gradient, *(state[kind] for kind in MOMENTS))
                        # .data: a view that is known to be one is compiled once for every shape of its base.
                        flat = [tensor.detach().view(-1).data for tensor in tensors]
                        own = [correction[index].data for correction in corrections]
                        name = self.names[id(parameter)]
                        copy = None if self.weight_cache is None else self.weight_cache.find_copy(name)
                        if copy is not None:
                            written.append(name)
                            copy = copy.view(-1)
                        rest = _flat(state.get(REMAINDER))
                        self._function(*flat, rate, decay, *own, scale, broken, copy, *random[index], rest)
            if self.weight_cache is not None:
                self.weight_cache.trust(written)

    def count(self, broken: Tensor) -> None:
        """One more update, for parameters that get one."""
        grads = [parameter.grad for group in self.optimizer.param_groups for parameter in group["params"]]
        if all(grad is not None for grad in grads):
            self.steps.add_(1 - broken.long())
            return
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.steps[self.indices[id(parameter)]].add_(1 - broken.long())


def _flat(value: Tensor | None) -> Tensor | None:
    return None if value is None else value.view(-1)


def _number(value: float, device: torch.device) -> Tensor:
    """A number on the device; filled there, because copying it from the host would wait for the device."""
    return torch.full((), value, dtype=torch.float32, device=device)
