"""The kernel of AdamW's update, in Triton."""

from typing import Any

from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch

_NUMBERS = 1024
"""Of a parameter that one program updates."""


@triton.jit(do_not_specialize_on_alignment=["correction1", "correction2"])
def update_kernel(
    parameter,
    gradient,
    exp_avg,
    exp_avg_sq,
    rate,
    decay,
    correction1,
    correction2,
    excess,
    broken,
    copy,
    count,
    new1,
    keep2,
    new2,
    eps,
    has_copy: tl.constexpr,
    block: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_in = index < count
    if tl.load(broken) > 0:
        return
    p = tl.load(parameter + index, is_in).to(tl.float32)
    g = tl.load(gradient + index, is_in).to(tl.float32)
    mean = tl.load(exp_avg + index, is_in).to(tl.float32)
    square = tl.load(exp_avg_sq + index, is_in).to(tl.float32)
    g = tl.div_rn(g, tl.load(excess))
    mean = mean + (g - mean) * new1
    square = square * keep2 + g * g * new2
    root = tl.div_rn(tl.sqrt_rn(square), tl.sqrt_rn(tl.load(correction2))) + eps
    step = tl.div_rn(tl.load(rate), tl.load(correction1))
    p = p * tl.load(decay) - tl.div_rn(step * mean, root)
    tl.store(parameter + index, p.to(parameter.dtype.element_ty), is_in)
    if has_copy:
        tl.store(copy + index, p.to(parameter.dtype.element_ty).to(copy.dtype.element_ty), is_in)
    tl.store(exp_avg + index, mean.to(exp_avg.dtype.element_ty), is_in)
    tl.store(exp_avg_sq + index, square.to(exp_avg_sq.dtype.element_ty), is_in)


def update(parameter: Tensor, *others: Any, beta1: float, beta2: float, eps: float) -> None:
    """One update; `others` are those of `kernels.update.Update`."""
    count = parameter.numel()
    *tensors, copy = others
    if count:
        grid = (triton.cdiv(count, _NUMBERS),)
        given = (parameter, *tensors, parameter if copy is None else copy, count, 1 - beta1, beta2, 1 - beta2, eps)
        launch(update_kernel, grid, *given, has_copy=copy is not None, block=_NUMBERS)
