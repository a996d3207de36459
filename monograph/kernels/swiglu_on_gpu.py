"""The kernels of gates, in Triton.

Each reads its inputs by their strides (gates are often parts of wider matmuls), computes in fp32 and writes a dense
result. No sum crosses programs, so results do not depend on the order in which these run.
"""

from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.rows import as_rows, check_alike
from monograph.kernels.tuning import Tunable

_BLOCKS = [
    {"block": block, "num_warps": warps} for block, warps in ((4096, 4), (4096, 8), (2048, 4), (2048, 8), (1024, 4))
]
"""Columns of a gate that one program computes, at most."""
_FORWARD, _BACKWARD = Tunable("swiglu", *_BLOCKS), Tunable("swiglu_backward", *_BLOCKS)
SETTINGS = {"enable_fp_fusion": False}
"""No fused multiply-add, so that every kernel computes the same bits of a gate."""


@triton.jit
def compute_swiglu(a, b):
    """In fp32."""
    return a * tl.sigmoid(a) * b


@triton.jit
def compute_swiglu_backward(g, a, b):
    """Both gradients and the gate, in fp32."""
    s = tl.sigmoid(a)
    return g * b * s * (1.0 + a * (1.0 - s)), g * a * s, a * s * b


@triton.jit
def swiglu_kernel(x, up, out, columns, x_row, up_row, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_in = column < columns
    a = tl.load(x + row * x_row + column, is_in).to(tl.float32)
    b = tl.load(up + row * up_row + column, is_in).to(tl.float32)
    tl.store(out + row * columns + column, compute_swiglu(a, b).to(out.dtype.element_ty), is_in)


@triton.jit
def swiglu_backward_kernel(
    grad,
    x,
    up,
    of_x,
    of_up,
    again,
    columns,
    grad_row,
    x_row,
    up_row,
    to_row,
    has_again: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * block + tl.arange(0, block)
    is_in = column < columns
    g = tl.load(grad + row * grad_row + column, is_in).to(tl.float32)
    a = tl.load(x + row * x_row + column, is_in).to(tl.float32)
    b = tl.load(up + row * up_row + column, is_in).to(tl.float32)
    by_x, by_up, gate = compute_swiglu_backward(g, a, b)
    to = row * to_row + column
    tl.store(of_x + to, by_x.to(of_x.dtype.element_ty), is_in)
    tl.store(of_up + to, by_up.to(of_up.dtype.element_ty), is_in)
    if has_again:
        tl.store(again + row * columns + column, gate.to(again.dtype.element_ty), is_in)


def swiglu(x: Tensor, up: Tensor) -> Tensor:
    """silu(x) * up."""
    check_alike(x, up)
    out = x.new_empty(x.shape)
    if out.numel():
        a, b = as_rows(x), as_rows(up)
        rows, columns = a.shape
        settings = _FORWARD.choose(rows, columns, x.element_size())
        settings["block"] = min(settings["block"], triton.next_power_of_2(columns))
        grid = (rows, triton.cdiv(columns, settings["block"]))
        launch(swiglu_kernel, grid, a, b, out, columns, a.stride(0), b.stride(0), **settings, **SETTINGS)
    return out


def swiglu_backward(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of both."""
    of_x, of_up = x.new_empty(x.shape), up.new_empty(up.shape)
    _swiglu_backward(grad, x, up, as_rows(of_x), as_rows(of_up), None)
    return of_x, of_up


def swiglu_backward_recompute(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of both, and the gate once more."""
    of_x, of_up, again = x.new_empty(x.shape), up.new_empty(up.shape), x.new_empty(x.shape)
    _swiglu_backward(grad, x, up, as_rows(of_x), as_rows(of_up), again)
    return of_x, of_up, again


def swiglu_backward_packed(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    """The gradients of both, side by side."""
    both = x.new_empty((*x.shape[:-1], 2 * x.shape[-1]))
    of_x, of_up = as_rows(both).chunk(2, dim=-1)
    _swiglu_backward(grad, x, up, of_x, of_up, None)
    return both


def swiglu_backward_packed_recompute(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of both, side by side, and the gate once more."""
    both, again = x.new_empty((*x.shape[:-1], 2 * x.shape[-1])), x.new_empty(x.shape)
    of_x, of_up = as_rows(both).chunk(2, dim=-1)
    _swiglu_backward(grad, x, up, of_x, of_up, again)
    return both, again


def _swiglu_backward(grad: Tensor, x: Tensor, up: Tensor, of_x: Tensor, of_up: Tensor, again: Tensor | None) -> None:
    check_alike(grad, x, up)
    if x.numel():
        g, a, b = as_rows(grad), as_rows(x), as_rows(up)
        rows, columns = a.shape
        settings = _BACKWARD.choose(rows, columns, x.element_size(), int(again is not None))
        settings["block"] = min(settings["block"], triton.next_power_of_2(columns))
        launch(
            swiglu_backward_kernel,
            (rows, triton.cdiv(columns, settings["block"])),
            g,
            a,
            b,
            of_x,
            of_up,
            of_x if again is None else again,
            columns,
            g.stride(0),
            a.stride(0),
            b.stride(0),
            of_x.stride(0),
            has_again=again is not None,
            **settings,
            **SETTINGS,
        )
