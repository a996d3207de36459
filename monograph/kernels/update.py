"""AdamW's update of one parameter, in place, reading and writing every number once.

torch's fused kernel also writes clipped gradients back, and runs at three quarters of the memory's speed. Everything
that changes from step to step is a tensor, so that nothing is read on the host and nothing is built twice.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from monograph.compat.triton import HAS_TRITON
from monograph.kernels import update_on_gpu
from monograph.kernels.param_remainders import combine_master, split_master
from monograph.kernels.stochastic_rounding import draw_rounding_bits, reference_stochastic_round

Update = Callable[..., None]
"""(parameter, gradient, exp_avg, exp_avg_sq, rate, decay, correction1, correction2, excess, broken, copy, key, starts,
remainder): flat tensors of one length, then numbers in tensors of no dims; where the parameter is written once more, in
another dtype, or None; for moments that are rounded stochastically, the key of this parameter's random bits in this
update and the position of the first element of each of its rows in the whole parameter, or None and None; last, the 16
bits that a bf16 parameter lacks of its fp32 master, or None."""


class StateForm(NamedTuple):
    """What an update keeps of each parameter, besides the parameter."""

    moments: torch.dtype = torch.float32
    has_remainders: bool = False
    """Whether parameters are bf16, with the rest of their fp32 masters beside them."""


def rounded_sqrt(value: Tensor) -> Tensor:
    """The square root of an fp32 value, rounded to nearest as on a GPU: torch's own is off by a bit now and then where
    a math library computes it, as on Intel CPUs."""
    return value.double().sqrt().float()


def make_reference_update(beta1: float, beta2: float, eps: float) -> Update:
    """The update in torch's ops, which a compiler makes one kernel of."""

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
        copy: Tensor | None = None,
        key: Tensor | None = None,
        starts: Tensor | None = None,
        remainder: Tensor | None = None,
    ) -> None:
        gradient = gradient.float() / excess
        mean, square = exp_avg.float(), exp_avg_sq.float()
        mean = mean + (gradient - mean) * (1 - beta1)
        square = square * beta2 + gradient * gradient * (1 - beta2)
        root = rounded_sqrt(square) / rounded_sqrt(correction2) + eps
        master = parameter.float() if remainder is None else combine_master(parameter, remainder)
        updated = master * decay - (rate / correction1) * mean / root
        if key is not None and starts is not None:
            first, second = draw_rounding_bits(key, starts, parameter.numel())
            mean, square = reference_stochastic_round(mean, first), reference_stochastic_round(square, second)
        written = [(parameter, updated), (exp_avg, mean), (exp_avg_sq, square)]
        if remainder is not None:
            weight, rest = split_master(updated)
            written = [(parameter, weight), (remainder, rest), *written[1:]]
        is_broken = broken > 0
        for old, new in written:
            old.copy_(torch.where(is_broken, old, new.to(old.dtype)))
        if copy is not None:
            copy.copy_(parameter)

    return update


def make_update(beta1: float, beta2: float, eps: float) -> Update:
    """The update by our own kernel on a GPU, elsewhere by torch's ops."""
    plain = make_reference_update(beta1, beta2, eps)

    def update(parameter: Tensor, *others: Any) -> None:
        if parameter.is_cuda and HAS_TRITON:
            update_on_gpu.update(parameter, *others, beta1=beta1, beta2=beta2, eps=eps)
        else:
            plain(parameter, *others)

    return update
