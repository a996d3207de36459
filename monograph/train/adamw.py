"""torch's AdamW over named tensors, or the same in one pass over memory."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from monograph.compat.modules import bypass_dynamo_disable, compile_function, make_optimizer_step
from monograph.errors import ConfigError
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.kernels.update import Update, make_reference_update, make_update
from monograph.train.optimizer import Optimizer, find_excess_norm
from monograph.train.optimizer_config import AdamWConfig
from monograph.train.rounding_keys import RoundingKeys
from monograph.train.single_pass import MOMENTS, REMAINDER, SinglePass

_FUSED_DEVICES = ("cuda", "cpu")


class AdamW(Optimizer):
    """torch's AdamW with its state made up front: a checkpoint can be read straight into it before the first step."""

    Config = AdamWConfig
    elementwise = True

    def __init__(
        self,
        config: AdamWConfig,
        *,
        parameters: Mapping[str, Tensor],
        decayed: Collection[str] | None = None,
        weight_cache: CastWeightCache | None = None,
        seed: int = 0,
        row_starts: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`row_starts` has the positions of each shard's rows in the whole parameter; without it shards are whole."""
        config = config.plan("exact")
        super().__init__(config, parameters=parameters, decayed=decayed, weight_cache=weight_cache)
        shrunk = [p for p in self.parameters.values() if self.is_decayed(p)]
        plain = [p for p in self.parameters.values() if not self.is_decayed(p)]
        groups = [{"params": shrunk, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.is_fused = _plan_fused(config, self.parameters)
        with bypass_dynamo_disable(torch.optim.Optimizer.add_param_group):
            self._adamw = torch.optim.AdamW(
                [group for group in groups if group["params"]],
                lr=config.lr,
                betas=(config.beta1, config.beta2),
                eps=config.eps,
                fused=self.is_fused,
                foreach=config.implementation == "foreach" and not self.is_fused,
            )
        self._update: Callable[..., Any] = make_optimizer_step(self._adamw)
        for parameter in self.parameters.values():
            counter_device = parameter.device if self.is_fused else torch.device("cpu")
            self._adamw.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=counter_device),
                **{moment: make_moment(parameter, config) for moment in MOMENTS},
            }
            if config.has_remainders:
                zeros = torch.zeros_like(parameter, dtype=torch.int16, requires_grad=False)
                self._adamw.state[parameter][REMAINDER] = zeros
        self._numbers = (config.beta1, config.beta2, config.eps)
        self._is_compiled = False
        self._rounding = None
        if config.draws_random:
            self._rounding = RoundingKeys(self.parameters, seed=seed, row_starts=row_starts or {})
        if config.is_single_pass:
            self._update = self._in_one_pass(make_update(*self._numbers))

    def compile(self, backend: Any) -> None:
        """Update each parameter with one compiled kernel in place of torch's fused one. Twice changes nothing."""
        if not self._is_compiled:
            self._is_compiled, self.is_fused = True, False
            update = make_reference_update(*self._numbers)
            self._update = self._in_one_pass(compile_function(update, backend, is_dynamic=True))

    def _in_one_pass(self, update: Update) -> SinglePass:
        return SinglePass(self._adamw, self.parameters, update, self.weight_cache, self._rounding)

    def step(self, lr: float, *, loss: Tensor, grad_norm: Tensor, max_norm: float = 0.0) -> None:
        """Make one update with gradients of at most `max_norm`, or none once a loss or a gradient was not finite.

        The verdict stays on the device where the fused kernel reads it, so a healthy run never waits for it, and it
        is sticky: updates launched before the host has seen the bad number leave the parameters alone as well.
        """
        self.expect_update()
        for group in self._adamw.param_groups:
            group["lr"] = lr
        broken, excess = self.judge(loss, grad_norm), find_excess_norm(grad_norm, max_norm)
        if isinstance(self._update, SinglePass):
            self._update(excess, broken)
            return
        self.narrow_gradients()
        if self.is_fused:
            # The kernel divides every gradient it reads: clipping costs no pass over memory of its own.
            self._adamw.found_inf, self._adamw.grad_scale = broken, excess  # type: ignore[attr-defined]
        elif broken.item():
            return
        elif excess is not None:
            for parameter in self.parameters.values():
                if parameter.grad is not None:
                    parameter.grad.div_(excess)
        self._update()

    def state(self) -> dict[tuple[str, str], Tensor]:
        """The running averages and remainders by (kind, parameter name), shaped and laid out like their parameters."""
        return {
            (kind, name): self._adamw.state[parameter][kind]
            for kind in (*MOMENTS, *([REMAINDER] if self.config.has_remainders else []))
            for name, parameter in self.parameters.items()
        }

    def set_updates(self, count: int) -> None:
        """Continue after `count` updates: bias correction depends on it."""
        for parameter in self.parameters.values():
            self._adamw.state[parameter]["step"].fill_(count)


def make_moment(parameter: Tensor, config: AdamWConfig) -> Tensor:
    """A moment before the first update."""
    dtype = config.find_state_dtype(str(parameter.dtype).removeprefix("torch."))
    return torch.zeros_like(parameter, dtype=getattr(torch, dtype), requires_grad=False)


def _plan_fused(config: AdamWConfig, parameters: Mapping[str, Tensor]) -> bool:
    devices = {parameter.device.type for parameter in parameters.values()}
    can = devices <= set(_FUSED_DEVICES)
    if config.implementation == "fused" and not can:
        raise ConfigError(
            "optimizer.implementation is fused",
            why=f"torch has no fused AdamW for {', '.join(sorted(devices))}",
            do="--optimizer.implementation auto",
        )
    return can and config.implementation in ("auto", "fused")
