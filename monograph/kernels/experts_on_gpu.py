"""Launch the experts' matmuls on a GPU: the Hopper kernels where they apply, else torch's grouped matmul."""

from typing import Any

import torch
from torch import Tensor

from monograph.compat.ops import fits_grouped_mm, grouped_mm, has_grouped_mm
from monograph.compat.triton import triton
from monograph.kernels.experts_on_hopper import (
    ENTRY,
    expert_matmul_kernel,
    expert_swiglu_kernel,
    expert_tiles_kernel,
)
from monograph.kernels.grouped_matmul import reference_grouped_matmul
from monograph.kernels.launch import call, find_device, is_only_built, launch
from monograph.kernels.matmul_swiglu_on_gpu import can_read, cut
from monograph.kernels.swiglu_on_gpu import swiglu
from monograph.kernels.tiles_on_hopper import COLUMNS, DEPTH, PIECE, REGISTERS, ROWS, STAGES
from monograph.kernels.tuning import Tunable

_HOPPER = 9
"""The compute capability that the kernels are written for."""
_KNOWN = 16
"""What Triton asks of a size: only of a multiple does it know that rows can be written so."""
_TILES = 64
"""Tiles that one program of the table's kernel writes."""
_GROUPS = [{"group": group} for group in (16, 4, 8, 32)]
"""Tiles of rows that are computed one after the other."""
_SWIGLU, _MATMUL, _SUM = (Tunable(name, *_GROUPS) for name in ("expert_swiglu", "expert_matmul", "expert_matmul_sum"))


def find_expert_tiles(rows: int, ends: Tensor) -> tuple[Tensor, Tensor]:
    """The table of tiles, and where it says how many there are."""
    programs = triton.cdiv(triton.cdiv(rows, ROWS) + ends.shape[0], _TILES)
    tiles = programs * _TILES
    table = torch.empty((tiles + 1) * ENTRY, dtype=torch.int32, device=ends.device)
    blocks = {"expert_block": triton.next_power_of_2(ends.shape[0]), "tile_block": tiles}
    sizes = ends.shape[0], rows
    launch(expert_tiles_kernel, (programs,), ends.contiguous(), table, *sizes, rows=ROWS, entry=ENTRY, **blocks)
    return table, table[tiles * ENTRY :]


def expert_swiglu(rows: Tensor, gate: Tensor, up: Tensor, ends: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Each expert's rows times both weights [experts, hidden, dim], and the gate of the two."""
    hidden = gate.shape[1]
    if not is_served(rows, gate, up):
        x, y = (multiply(rows, weight.transpose(1, 2), ends) for weight in (gate, up))
        return x, y, swiglu(x, y)
    found = [rows.new_empty((rows.shape[0], hidden)) for _ in range(3)]
    operands = cut(rows, ROWS, DEPTH), *(cut(each.flatten(0, 1), COLUMNS // 2, DEPTH) for each in (gate, up))
    sizes = hidden, triton.cdiv(hidden, COLUMNS // 2), triton.cdiv(rows.shape[1], DEPTH)
    settings = _SWIGLU.choose(*rows.shape, hidden, ends.shape[0])
    start(expert_swiglu_kernel, *operands, *found, *find_expert_tiles(rows.shape[0], ends), *sizes, **settings)
    return found[0], found[1], found[2]


def expert_matmul(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows times its weight [experts, out, in]."""
    if not is_served(rows, weight):
        return multiply(rows, weight.transpose(1, 2), ends)
    out = rows.new_empty((rows.shape[0], weight.shape[1]))
    left = cut(rows, ROWS, DEPTH)
    right = cut(weight.flatten(0, 1).unsqueeze(0), 1, COLUMNS, DEPTH)
    tiles = find_expert_tiles(rows.shape[0], ends)
    columns = weight.shape[1]
    sizes = columns, columns, triton.cdiv(columns, COLUMNS), triton.cdiv(rows.shape[1], DEPTH)
    settings = _MATMUL.choose(*rows.shape, columns, ends.shape[0])
    start(expert_matmul_kernel, left, left, right, right, out, *tiles, *sizes, parts=1, **settings)
    return out


def expert_matmul_sum(rows: Tensor, weight: Tensor, other_rows: Tensor, other_weight: Tensor, ends: Tensor) -> Tensor:
    """rows @ weight + other_rows @ other_weight, expert by expert; weights are [experts, in, out]."""
    if not (is_served(rows, weight) and is_served(other_rows, other_weight)):
        total = multiply(rows, weight, ends)
        call(total.add_, multiply(other_rows, other_weight, ends))
        return total
    out = rows.new_empty((rows.shape[0], weight.shape[2]))
    lefts = [cut(each, ROWS, DEPTH) for each in (rows, other_rows)]
    rights = [cut(each.flatten(0, 1), DEPTH, COLUMNS) for each in (weight, other_weight)]
    tiles = find_expert_tiles(rows.shape[0], ends)
    columns, depth = weight.shape[2], weight.shape[1]
    sizes = columns, depth, triton.cdiv(columns, COLUMNS), triton.cdiv(depth, DEPTH)
    settings = _SUM.choose(*rows.shape, columns, ends.shape[0])
    start(expert_matmul_kernel, *lefts, *rights, out, *tiles, *sizes, parts=2, **settings)
    return out


def multiply(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """torch's grouped matmul where it takes such rows, else a loop over experts."""
    if is_only_built():
        return rows.new_empty((rows.shape[0], weights.shape[2]))
    fits = has_grouped_mm(rows.device, rows.dtype) and fits_grouped_mm(rows.dtype, *weights.shape[1:])
    return grouped_mm(rows, weights, ends) if fits else reference_grouped_matmul(rows, weights, ends)


def is_served(rows: Tensor, *weights: Tensor) -> bool:
    """Whether our kernels are for this GPU, can read these operands, and have work for every processor.

    Steps that sum over a weight's rows must end with the expert's: what follows belongs to the next one.
    """
    device = torch.cuda.get_device_properties(find_device([rows]))
    if device.major != _HOPPER or not can_read(rows):
        return False
    if not all(each.is_contiguous() and can_read(each.flatten(0, 1)) for each in weights):
        return False
    fits = all(each.shape[1] % DEPTH == 0 and each.shape[2] % _KNOWN == 0 for each in weights)
    return fits and rows.shape[0] >= ROWS * device.multi_processor_count // 2


def start(kernel: Any, *args: Any, **others: int) -> None:
    """Run a kernel with a program on every processor; they take turns with the tiles."""
    processors = torch.cuda.get_device_properties(find_device(args)).multi_processor_count
    settings = {"entry": ENTRY, "stages": STAGES, "piece": PIECE, "registers": REGISTERS, **others}
    launch(kernel, (processors,), *args, **settings, num_warps=4)
