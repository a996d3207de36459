"""The kernels of experts' biases, in Triton. A row's expert follows from where the experts' rows end.

Where they end is data: nothing beyond the rows is read, whatever it says.
"""

from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.rows import as_rows

_COLUMNS = 2048
"""Of a row that one program adds to, at most."""
_SUM_COLUMNS, _SUM_ROWS = 64, 64
"""Of the tiles that a program sums over."""


@triton.jit
def add_expert_bias_kernel(
    rows, bias, ends, out, columns, rows_row, bias_row, n_experts, experts: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    number = tl.arange(0, experts)
    end = tl.load(ends + number, number < n_experts, other=2147483647)
    expert = tl.sum((end <= row).to(tl.int32), 0).to(tl.int64)
    is_in = column < columns
    x = tl.load(rows + row * rows_row + column, is_in, other=0.0).to(tl.float32)
    b = tl.load(bias + expert * bias_row + column, is_in & (expert < n_experts), other=0.0).to(tl.float32)
    tl.store(out + row * columns + column, (x + b).to(out.dtype.element_ty), is_in)


@triton.jit
def expert_bias_grad_kernel(grad, ends, found, rows, columns, grad_row, block: tl.constexpr, height: tl.constexpr):
    expert = tl.program_id(0)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_in = column < columns
    start = tl.load(ends + expert - 1, expert > 0, other=0)
    end = tl.minimum(tl.load(ends + expert), rows)
    total = tl.zeros([block], dtype=tl.float32)
    for first in range(start, end, height):
        row = first + tl.arange(0, height)
        at = row.to(tl.int64)[:, None] * grad_row + column[None, :]
        tile = tl.load(grad + at, (row[:, None] < end) & is_in[None, :], other=0.0)
        total += tl.sum(tile.to(tl.float32), 0)
    tl.store(found + expert.to(tl.int64) * columns + column, total.to(found.dtype.element_ty), is_in)


def add_expert_bias(rows: Tensor, bias: Tensor, ends: Tensor) -> Tensor:
    """The rows with the bias of each one's expert."""
    assert bias.shape == (ends.shape[0], rows.shape[1]), "every expert has a bias as wide as the rows"
    out = rows.new_empty(rows.shape)
    if out.numel():
        x, b = as_rows(rows), as_rows(bias)
        columns, n_experts = x.shape[1], ends.shape[0]
        block = min(_COLUMNS, triton.next_power_of_2(columns))
        grid = (x.shape[0], triton.cdiv(columns, block))
        sizes = columns, x.stride(0), b.stride(0), n_experts
        experts = triton.next_power_of_2(n_experts)
        launch(add_expert_bias_kernel, grid, x, b, ends.contiguous(), out, *sizes, experts=experts, block=block)
    return out


def expert_bias_grad(grad: Tensor, ends: Tensor) -> Tensor:
    """The sum of every expert's rows: [experts, width]."""
    found = grad.new_empty((ends.shape[0], grad.shape[1]))
    if found.numel():
        g = as_rows(grad)
        grid = (ends.shape[0], triton.cdiv(g.shape[1], _SUM_COLUMNS))
        settings = {"block": _SUM_COLUMNS, "height": _SUM_ROWS}
        launch(expert_bias_grad_kernel, grid, g, ends.contiguous(), found, *g.shape, g.stride(0), **settings)
    return found
