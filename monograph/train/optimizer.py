"""AdamW over named tensors, with its moments as named tensors too, so that checkpoints and reports can read them."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from monograph.compat.modules import compile_function
from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.execute.layer import explained
from monograph.train.config import OptimizerConfig

_FUSED_DEVICES = ("cuda", "cpu")
_CLIP_EPS = 1e-6
"""What torch adds to a norm before it divides by it."""
_MOMENTS = ("exp_avg", "exp_avg_sq")


class Optimizer(Configurable):
    """torch's AdamW with its state made up front: a checkpoint can be read straight into it before the first step."""

    Config = OptimizerConfig

    def __init__(self, config: OptimizerConfig, *, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = dict(parameters)
        decayed = [p for p in self.parameters.values() if p.ndim >= 2]
        plain = [p for p in self.parameters.values() if p.ndim < 2]
        groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self._broken: Tensor | None = None
        self.is_fused = _plan_fused(config, self.parameters)
        self._adamw = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=self.is_fused,
            foreach=config.implementation == "foreach" and not self.is_fused,
        )
        self._update: Callable[..., Any] = self._adamw.step
        for parameter in self.parameters.values():
            counter_device = parameter.device if self.is_fused else torch.device("cpu")
            self._adamw.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=counter_device),
                **{moment: torch.zeros_like(parameter) for moment in _MOMENTS},
            }
        if config.implementation == "compiled":
            self.compile("inductor")

    def compile(self, backend: Any) -> None:
        """Update each parameter with one compiled kernel in place of torch's fused one. Twice changes nothing."""
        if isinstance(self._update, CompiledUpdate):
            return
        self.is_fused = False
        self._update = CompiledUpdate(self._adamw, list(self.parameters.values()), backend)

    def step(self, lr: float, *, loss: Tensor, grad_norm: Tensor, max_norm: float = 0.0) -> None:
        """Make one update with gradients of at most `max_norm`, or none once a loss or a gradient was not finite.

        The verdict stays on the device where the fused kernel reads it, so a healthy run never waits for it, and it
        is sticky: updates launched before the host has seen the bad number leave the parameters alone as well.
        """
        for group in self._adamw.param_groups:
            group["lr"] = lr
        broken = (~(torch.isfinite(grad_norm) & torch.isfinite(loss))).float()
        self._broken = broken if self._broken is None else torch.maximum(self._broken, broken)
        excess = ((grad_norm + _CLIP_EPS) / max_norm).clamp(min=1.0) if max_norm else None
        if isinstance(self._update, CompiledUpdate):
            self._update(excess, self._broken)
            return
        if self.is_fused:
            # The kernel divides every gradient it reads: clipping costs no pass over memory of its own.
            self._adamw.found_inf, self._adamw.grad_scale = self._broken, excess  # type: ignore[attr-defined]
        elif self._broken.item():
            return
        elif excess is not None:
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.div_(excess)
        self._update()

    def clear_gradients(self) -> None:
        """Drop the gradients; the next backward allocates them anew."""
        self._adamw.zero_grad(set_to_none=True)

    def moments(self) -> dict[tuple[str, str], Tensor]:
        """The running averages by (kind, parameter name); each is shaped and laid out like its parameter."""
        return {
            (kind, name): self._adamw.state[parameter][kind]
            for kind in _MOMENTS
            for name, parameter in self.parameters.items()
        }

    def set_updates(self, count: int) -> None:
        """Continue after `count` updates: bias correction depends on it."""
        for parameter in self.parameters.values():
            self._adamw.state[parameter]["step"].fill_(count)


class CompiledUpdate:
    """AdamW as one kernel a parameter, made by the compiler from plain ops, for all sizes at once.

    It reads every number once and writes it once: torch's fused kernel also writes clipped gradients back, and runs at
    three quarters of the memory's speed. Everything that changes from step to step is a tensor: a rate given as a
    number would be compiled in. Nothing is read on the host.
    """

    def __init__(self, optimizer: torch.optim.AdamW, parameters: list[Tensor], backend: Any) -> None:
        self.optimizer = optimizer
        group = optimizer.param_groups[0]
        beta1, beta2 = group["betas"]
        self._function = compile_function(make_update(beta1, beta2, group["eps"]), backend, is_dynamic=True)
        self.steps = torch.zeros(len(parameters), dtype=torch.float32, device=parameters[0].device)
        for place, parameter in enumerate(parameters):
            state = optimizer.state[parameter]
            self.steps[place] = state["step"]
            state["step"] = self.steps[place]
        self.places = {id(parameter): place for place, parameter in enumerate(parameters)}

    def __call__(self, excess: Tensor | None, broken: Tensor) -> None:
        """One update of every parameter that has a gradient; none when broken."""
        device = self.steps.device
        with torch.no_grad(), explained("the optimizer"):
            self.count(broken)
            beta1, beta2 = self.optimizer.param_groups[0]["betas"]
            scale = torch.ones((), device=device) if excess is None else excess
            corrections = (1 - beta1**self.steps).unbind(), (1 - beta2**self.steps).unbind()
            for group in self.optimizer.param_groups:
                rate, decay = (_number(x, device) for x in (group["lr"], 1 - group["lr"] * group["weight_decay"]))
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        place, state = self.places[id(parameter)], self.optimizer.state[parameter]
                        tensors = (parameter, parameter.grad, *(state[kind] for kind in _MOMENTS))
                        # .data: a view that is known to be one is compiled once for every shape of its base.
                        flat = [tensor.detach().view(-1).data for tensor in tensors]
                        own = [correction[place].data for correction in corrections]
                        self._function(*flat, rate, decay, *own, scale, broken)

    def count(self, broken: Tensor) -> None:
        """One more update, for parameters that get one."""
        grads = [parameter.grad for group in self.optimizer.param_groups for parameter in group["params"]]
        if all(grad is not None for grad in grads):
            self.steps.add_(1 - broken)
            return
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.steps[self.places[id(parameter)]].add_(1 - broken)


def _number(value: float, device: torch.device) -> Tensor:
    """A number on the device; filled there, because copying it from the host would wait for the device."""
    return torch.full((), value, dtype=torch.float32, device=device)


def make_update(beta1: float, beta2: float, eps: float) -> Callable[..., None]:
    """AdamW's update of one parameter, in place; all tensors flat, the rest numbers in tensors."""

    def update(
        parameter: Tensor,
        gradient: Tensor,
        exp_avg: Tensor,
        exp_avg_sq: Tensor,
        rate: Tensor,
        decay: Tensor,
        correction1: Tensor,
        correction2: Tensor,
        excess: Tensor,
        broken: Tensor,
    ) -> None:
        gradient = gradient.to(parameter.dtype) / excess
        mean = exp_avg + (gradient - exp_avg) * (1 - beta1)
        square = exp_avg_sq * beta2 + gradient * gradient * (1 - beta2)
        root = square.sqrt() / correction2.sqrt() + eps
        updated = parameter * decay - (rate / correction1) * mean / root
        is_broken = broken > 0
        parameter.copy_(torch.where(is_broken, parameter, updated))
        exp_avg.copy_(torch.where(is_broken, exp_avg, mean))
        exp_avg_sq.copy_(torch.where(is_broken, exp_avg_sq, square))

    return update


def _plan_fused(config: OptimizerConfig, parameters: Mapping[str, Tensor]) -> bool:
    devices = {parameter.device.type for parameter in parameters.values()}
    can = devices <= set(_FUSED_DEVICES)
    if config.implementation == "fused" and not can:
        raise ConfigError(
            "optimizer.implementation is fused",
            why=f"torch has no fused AdamW for {', '.join(sorted(devices))}",
            do="--optimizer.implementation auto",
        )
    return can and config.implementation in ("auto", "fused")
