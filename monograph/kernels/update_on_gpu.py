"""The kernel of AdamW's update, in Triton."""

from typing import Any

from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.param_remainders import NAN_BITS
from monograph.kernels.random_on_gpu import FACTORS, count_elements, hash_counters

_NUMBERS = 1024
"""Of a parameter that one program updates."""


@triton.jit
def round_stochastically(value, bits):
    moved = (value.to(tl.int32, bitcast=True) + (bits & 0xFFFF).to(tl.int32)) & -65536
    return tl.where(value == value, moved.to(tl.float32, bitcast=True), value)


@triton.jit
def load_master(parameter, remainder, index, is_in, has_remainder: tl.constexpr):
    p = tl.load(parameter + index, is_in)
    if has_remainder:
        high = p.to(tl.int16, bitcast=True).to(tl.int32)
        master = ((high << 16) + tl.load(remainder + index, is_in).to(tl.int32)).to(tl.float32, bitcast=True)
    else:
        master = p.to(tl.float32)
    return master


@triton.jit
def store_master(parameter, remainder, master, index, is_in, has_remainder: tl.constexpr, nan_bits: tl.constexpr):
    """Write the parameter as `monograph.kernels.param_remainders` defines it, and return what was written."""
    if has_remainder:
        bits = tl.where(master == master, master.to(tl.int32, bitcast=True), nan_bits)
        high = (bits + 32768) >> 16
        weight = high.to(tl.int16).to(tl.bfloat16, bitcast=True)
        tl.store(remainder + index, (bits - (high << 16)).to(tl.int16), is_in)
    else:
        weight = master.to(parameter.dtype.element_ty)
    tl.store(parameter + index, weight, is_in)
    return weight


@triton.jit(do_not_specialize_on_alignment=["correction1", "correction2", "key"])
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
    key,
    starts,
    remainder,
    width,
    count,
    new1,
    keep2,
    new2,
    eps,
    has_copy: tl.constexpr,
    is_stochastic: tl.constexpr,
    is_one_row: tl.constexpr,
    has_remainder: tl.constexpr,
    nan_bits: tl.constexpr,
    step: tl.constexpr,
    first: tl.constexpr,
    second: tl.constexpr,
    block: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    is_in = index < count
    if tl.load(broken) > 0:
        return
    p = load_master(parameter, remainder, index, is_in, has_remainder)
    g = tl.load(gradient + index, is_in).to(tl.float32)
    mean = tl.load(exp_avg + index, is_in).to(tl.float32)
    square = tl.load(exp_avg_sq + index, is_in).to(tl.float32)
    g = tl.div_rn(g, tl.load(excess))
    mean = mean + (g - mean) * new1
    square = square * keep2 + g * g * new2
    root = tl.div_rn(tl.sqrt_rn(square), tl.sqrt_rn(tl.load(correction2))) + eps
    size = tl.div_rn(tl.load(rate), tl.load(correction1))
    p = p * tl.load(decay) - tl.div_rn(size * mean, root)
    weight = store_master(parameter, remainder, p, index, is_in, has_remainder, nan_bits)
    if has_copy:
        tl.store(copy + index, weight.to(copy.dtype.element_ty), is_in)
    if is_stochastic:
        if is_one_row:
            counters = tl.load(starts) + index
        else:
            counters = count_elements(starts, index, width, is_in)
        random = hash_counters(key, counters, step, first, second)
        mean = round_stochastically(mean, random >> 48)
        square = round_stochastically(square, random >> 32)
    tl.store(exp_avg + index, mean.to(exp_avg.dtype.element_ty), is_in)
    tl.store(exp_avg_sq + index, square.to(exp_avg_sq.dtype.element_ty), is_in)


def update(parameter: Tensor, *others: Any, beta1: float, beta2: float, eps: float) -> None:
    """One update; `others` are those of `kernels.update.Update`.

    Moments that are rounded stochastically have the bits of the reference, and so no multiply is fused with an add.
    """
    *tensors, copy, key, starts, remainder = others
    count = parameter.numel()
    if not count:
        return
    rows = 1 if starts is None else starts.numel()
    given = (
        *(parameter, *tensors),
        *(parameter if each is None else each for each in (copy, key, starts, remainder)),
        *(count // rows, count, 1 - beta1, beta2, 1 - beta2, eps),
    )
    launch(
        update_kernel,
        (triton.cdiv(count, _NUMBERS),),
        *given,
        has_copy=copy is not None,
        is_stochastic=key is not None,
        is_one_row=rows == 1,
        has_remainder=remainder is not None,
        nan_bits=NAN_BITS,
        block=_NUMBERS,
        enable_fp_fusion=key is None,
        **FACTORS,
    )
