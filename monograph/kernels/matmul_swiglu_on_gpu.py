"""Who computes a matmul with a gate on a GPU: one kernel of ours where there is one for it, or one after the other."""

from typing import Any

import torch
from torch import Tensor

from monograph.compat.triton import TensorDescriptor, gl
from monograph.kernels.launch import call, find_device, launch
from monograph.kernels.matmul_swiglu_on_hopper import matmul_swiglu_backward_kernel, matmul_swiglu_kernel
from monograph.kernels.rows import as_rows
from monograph.kernels.swiglu_on_gpu import swiglu, swiglu_backward_packed_recompute
from monograph.kernels.tiles_on_hopper import COLUMNS, DEPTH, PIECE, REGISTERS, ROWS, STAGES
from monograph.kernels.tuning import Tunable

_HOPPER = 9
"""The compute capability that the kernels are written for."""
_TOGETHER = 8
"""Numbers of 16 bits that memory moves at once: rows have to begin at a multiple of them."""
_KNOWN = 16
"""What Triton asks of a size: only of a multiple does it know that rows can be written so."""
_FORWARD = Tunable("matmul_swiglu", *({"group": group} for group in (16, 4, 8, 32)))
_BACKWARD = Tunable("matmul_swiglu_backward", *({"group": group} for group in (8, 4, 16, 32)))
"""group: tiles below each other that are computed one after the other."""


def matmul_swiglu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x @ weight.T, and the gate of its left half with its right half."""
    (rows, depth), columns = x.shape, weight.shape[0] // 2
    both = x.new_empty((rows, 2 * columns))
    if not is_served(columns, x, weight):
        call(torch.mm, x, weight.t(), out=both)
        return both, swiglu(*both.chunk(2, dim=1))
    gated = x.new_empty((rows, columns))
    left, right = cut(x, ROWS, DEPTH), cut(weight.view(2, columns, depth), 2, COLUMNS // 2, DEPTH)
    tiles = count_tiles(rows, columns, depth, COLUMNS // 2)
    settings = _FORWARD.choose(rows, columns, depth)
    start(matmul_swiglu_kernel, left, right, both, gated, rows, columns, *tiles, **settings)
    return both, gated


def matmul_swiglu_backward(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a gate's inputs side by side, where its own is grad @ weight; and the gate once more."""
    (rows, depth), columns = grad.shape, weight.shape[1]
    a, b = as_rows(x), as_rows(up)
    assert a.shape == b.shape == (rows, columns), "a kernel would read something else"
    if not is_served(columns, grad, weight, a, b):
        of_gate = grad.new_empty((rows, columns))
        call(torch.mm, grad, weight, out=of_gate)
        return swiglu_backward_packed_recompute(of_gate, a, b)
    of_both, gated = x.new_empty((rows, 2 * columns)), x.new_empty((rows, columns))
    left, right = cut(grad, ROWS, DEPTH), cut(weight, DEPTH, COLUMNS)
    inputs = [cut(each, ROWS // 2, PIECE) for each in (a, b)]
    sizes = (rows, columns, *count_tiles(rows, columns, depth, COLUMNS))
    settings = _BACKWARD.choose(rows, columns, depth)
    start(matmul_swiglu_backward_kernel, left, right, *inputs, of_both, gated, *sizes, **settings)
    return of_both, gated


def is_served(columns: int, *operands: Tensor) -> bool:
    """Whether our kernels are for this GPU, can read these operands, and have work for every processor."""
    device = torch.cuda.get_device_properties(find_device(operands))
    if device.major != _HOPPER or columns % _KNOWN or not all(map(can_read, operands)):
        return False
    down, across, _ = count_tiles(operands[0].shape[0], columns, DEPTH, COLUMNS)
    return down * across >= device.multi_processor_count


def can_read(value: Tensor) -> bool:
    """Whether the copy engine can: rows that begin where memory can be read at once."""
    is_even = value.stride(1) == 1 and value.stride(0) % _TOGETHER == 0 and value.data_ptr() % 16 == 0
    return is_even and value.dtype is torch.bfloat16 and value.numel() > 0


def count_tiles(rows: int, columns: int, depth: int, wide: int) -> tuple[int, int, int]:
    """Tiles below each other, beside each other, and steps of each."""
    return -(-rows // ROWS), -(-columns // wide), -(-depth // DEPTH)


def cut(value: Tensor, *shape: int) -> Any:
    """How the copy engine cuts a value into tiles; their rows lie so that columns of them can be read at once."""
    return TensorDescriptor.from_tensor(
        value, list(shape), gl.NVMMASharedLayout(min(128, 2 * shape[-1]), 16, len(shape))
    )


def start(kernel: Any, *args: Any, group: int) -> None:
    """Run a kernel with a program on every processor; they take turns with the tiles."""
    processors = torch.cuda.get_device_properties(find_device(args)).multi_processor_count
    settings = {"group": group, "stages": STAGES, "piece": PIECE, "registers": REGISTERS}
    launch(kernel, (processors,), *args, **settings, num_warps=4)
