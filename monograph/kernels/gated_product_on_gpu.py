"""Who computes a product with a gate on a GPU: one kernel of ours where there is one for it, or one after the other."""

import importlib
from typing import Any

import torch
from torch import Tensor

from monograph.kernels.gate_on_gpu import gate, gate_backward_joined_again
from monograph.kernels.launch import call, launch
from monograph.kernels.rows import as_rows

_HOPPER = 9
"""The compute capability that the kernels are written for."""
_TOGETHER = 8
"""Numbers of 16 bits that memory moves at once: rows have to begin at a multiple of them."""


def gated_product(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x @ weight.T, and the gate of its left half with its right half."""
    (rows, depth), columns = x.shape, weight.shape[0] // 2
    both = x.new_empty((rows, 2 * columns))
    hopper = find_kernels(columns, x, weight)
    if hopper is None:
        call(torch.mm, x, weight.t(), out=both)
        return both, gate(*both.chunk(2, dim=1))
    gated = x.new_empty((rows, columns))
    half = hopper.COLUMNS // 2
    left = cut(x, hopper.ROWS, hopper.DEPTH)
    right = cut(weight.view(2, columns, depth), 2, half, hopper.DEPTH)
    tiles = count_tiles(hopper, rows, columns, depth, half)
    start(hopper.gated_product_kernel, left, right, both, gated, rows, columns, *tiles, group=hopper.FORWARD_GROUP)
    return both, gated


def product_gate_backward(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a gate's inputs side by side, where its own is grad @ weight; and the gate once more."""
    (rows, depth), columns = grad.shape, weight.shape[1]
    a, b = as_rows(x), as_rows(up)
    hopper = find_kernels(columns, grad, weight, a, b)
    if hopper is None:
        of_gate = grad.new_empty((rows, columns))
        call(torch.mm, grad, weight, out=of_gate)
        return gate_backward_joined_again(of_gate, a, b)
    of_both, gated = x.new_empty((rows, 2 * columns)), x.new_empty((rows, columns))
    left, right = cut(grad, hopper.ROWS, hopper.DEPTH), cut(weight, hopper.DEPTH, hopper.COLUMNS)
    inputs = [cut(each, hopper.ROWS // 2, hopper.PIECE) for each in (a, b)]
    tiles = count_tiles(hopper, rows, columns, depth, hopper.COLUMNS)
    kernel, group = hopper.product_gate_backward_kernel, hopper.BACKWARD_GROUP
    start(kernel, left, right, *inputs, of_both, gated, rows, columns, *tiles, group=group)
    return of_both, gated


def find_kernels(columns: int, *operands: Tensor) -> Any:
    """Our kernels, where this GPU has them, they can read these operands, and there is work for every processor."""
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    if device.major != _HOPPER or columns % _TOGETHER or not all(map(can_read, operands)):
        return None
    hopper: Any = importlib.import_module("monograph.kernels.gated_product_on_hopper")
    rows, depth = operands[0].shape
    down, across, _ = count_tiles(hopper, rows, columns, depth, hopper.COLUMNS)
    return hopper if down * across >= device.multi_processor_count else None


def can_read(value: Tensor) -> bool:
    """Whether the copy engine can: rows that begin where memory can be read at once."""
    is_even = value.stride(1) == 1 and value.stride(0) % _TOGETHER == 0 and value.data_ptr() % 16 == 0
    return is_even and value.dtype is torch.bfloat16 and value.numel() > 0


def count_tiles(hopper: Any, rows: int, columns: int, depth: int, wide: int) -> tuple[int, int, int]:
    """Tiles below each other, beside each other, and steps of each."""
    return -(-rows // hopper.ROWS), -(-columns // wide), -(-depth // hopper.DEPTH)


def cut(value: Tensor, *shape: int) -> Any:
    """How the copy engine cuts a value into tiles, and where it puts their rows: as far apart as banks are."""
    gluon: Any = importlib.import_module("triton.experimental.gluon.nvidia.hopper")
    language: Any = importlib.import_module("triton.experimental.gluon.language")
    layout = language.NVMMASharedLayout(min(128, 2 * shape[-1]), 16, len(shape))
    return gluon.TensorDescriptor.from_tensor(value, list(shape), layout)


def start(kernel: Any, *args: Any, group: int) -> None:
    """Run a kernel with a program on every processor, which take turns with the tiles."""
    hopper: Any = importlib.import_module("monograph.kernels.gated_product_on_hopper")
    processors = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    settings = {"stages": hopper.STAGES, "piece": hopper.PIECE, "registers": hopper.REGISTERS}
    launch(kernel, (processors,), *args, group=group, **settings, num_warps=4)
