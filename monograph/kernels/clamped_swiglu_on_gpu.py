"""The kernels of the clamped SwiGLU, in Triton: each program reads the pairs of one row and computes in fp32.

What is not a number stays that, as in torch: a plain minimum or maximum of a GPU would return the limit instead.
"""

from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.rows import as_rows

_COLUMNS = 2048
"""Of the result that one program computes, at most."""


@triton.jit
def clamped_swiglu_kernel(pairs, out, columns, pairs_row, alpha, limit, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_in = column < columns
    gate = tl.load(pairs + row * pairs_row + 2 * column, is_in, other=0.0).to(tl.float32)
    up = tl.load(pairs + row * pairs_row + 2 * column + 1, is_in, other=0.0).to(tl.float32)
    gate = tl.minimum(gate, limit, tl.PropagateNan.ALL)
    up = tl.clamp(up, -limit, limit, tl.PropagateNan.ALL)
    value = (up + 1.0) * gate * tl.sigmoid(gate * alpha)
    tl.store(out + row * columns + column, value.to(out.dtype.element_ty), is_in)


@triton.jit
def clamped_swiglu_backward_kernel(grad, pairs, found, columns, grad_row, pairs_row, alpha, limit, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_in = column < columns
    g = tl.load(grad + row * grad_row + column, is_in, other=0.0).to(tl.float32)
    gate = tl.load(pairs + row * pairs_row + 2 * column, is_in, other=0.0).to(tl.float32)
    up = tl.load(pairs + row * pairs_row + 2 * column + 1, is_in, other=0.0).to(tl.float32)
    low = tl.minimum(gate, limit, tl.PropagateNan.ALL)
    bounded = tl.clamp(up, -limit, limit, tl.PropagateNan.ALL)
    share = tl.sigmoid(low * alpha)
    of_gate = g * (bounded + 1.0) * share * (1.0 + alpha * low * (1.0 - share))
    of_gate = tl.where(gate > limit, 0.0, of_gate)
    of_up = tl.where((up > limit) | (up < -limit), 0.0, g * low * share)
    to = row * 2 * columns + 2 * column
    tl.store(found + to, of_gate.to(found.dtype.element_ty), is_in)
    tl.store(found + to + 1, of_up.to(found.dtype.element_ty), is_in)


def clamped_swiglu(pairs: Tensor, alpha: float, limit: float) -> Tensor:
    """The result [..., hidden] for pairs [..., 2 * hidden]."""
    out = pairs.new_empty((*pairs.shape[:-1], pairs.shape[-1] // 2))
    if out.numel():
        rows = as_rows(pairs)
        columns = out.shape[-1]
        block = min(_COLUMNS, triton.next_power_of_2(columns))
        grid = (rows.shape[0], triton.cdiv(columns, block))
        launch(clamped_swiglu_kernel, grid, rows, out, columns, rows.stride(0), alpha, limit, block=block)
    return out


def clamped_swiglu_backward(grad: Tensor, pairs: Tensor, alpha: float, limit: float) -> Tensor:
    """The gradient of the pairs."""
    assert tuple(grad.shape) == (*pairs.shape[:-1], pairs.shape[-1] // 2), "a pair has one result"
    found = pairs.new_empty(pairs.shape)
    if found.numel():
        g, rows = as_rows(grad), as_rows(pairs)
        columns = g.shape[-1]
        block = min(_COLUMNS, triton.next_power_of_2(columns))
        grid = (rows.shape[0], triton.cdiv(columns, block))
        strides = g.stride(0), rows.stride(0)
        launch(clamped_swiglu_backward_kernel, grid, g, rows, found, columns, *strides, alpha, limit, block=block)
    return found
