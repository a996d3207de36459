"""Matmuls that compute a gate, or its backward, while their results are still in the processor; in Gluon.

What is as wide as the hidden layer is not read again. Every number is rounded where a matmul and a gate of their own
round it.
"""

from monograph.compat.triton import gl, gluon, mbarrier
from monograph.kernels.tiles_on_hopper import (
    allocate_tiles,
    async_load,
    find_tile,
    make_barriers,
    multiply,
    run_load_partition,
)


@gluon.jit
def matmul_swiglu_kernel(
    left,
    right,
    both,
    gated,
    rows,
    columns,
    down,
    across,
    steps,
    group: gl.constexpr,
    stages: gl.constexpr,
    piece: gl.constexpr,
    registers: gl.constexpr,
):
    width: gl.constexpr = 2 * right.block_shape[1]
    tensors = (both, gated, rows, columns)
    run_warp_specialized(left, right, tensors, down, across, steps, False, width, group, stages, piece, registers)


@gluon.jit
def matmul_swiglu_backward_kernel(
    left,
    right,
    x,
    up,
    of_both,
    gated,
    rows,
    columns,
    down,
    across,
    steps,
    group: gl.constexpr,
    stages: gl.constexpr,
    piece: gl.constexpr,
    registers: gl.constexpr,
):
    width: gl.constexpr = right.block_shape[1]
    inputs = allocate_tiles(4, x)
    tensors = (x, up, of_both, gated, rows, columns, inputs, make_barriers(2, 1))
    run_warp_specialized(left, right, tensors, down, across, steps, True, width, group, stages, piece, registers)


@gluon.jit
def run_warp_specialized(
    left,
    right,
    tensors,
    down,
    across,
    steps,
    is_backward: gl.constexpr,
    width: gl.constexpr,
    group: gl.constexpr,
    stages: gl.constexpr,
    piece: gl.constexpr,
    registers: gl.constexpr,
):
    """Share a program's work out among its warps."""
    height: gl.constexpr = left.block_shape[0] // 2
    lefts = allocate_tiles(stages, left)
    rights = allocate_tiles(stages, right)
    layout: gl.constexpr = gl.NVMMASharedLayout(2 * piece, 16, 2)
    results = gl.allocate_shared_memory(gl.bfloat16, [2 * width // piece, height, piece], layout)
    ready = make_barriers(stages, 1)
    empty = make_barriers(stages, 2)
    full = make_barriers(2, 1)
    free = make_barriers(2, 1)
    tiles = down * across
    gl.warp_specialize(
        [
            (multiply, (0, lefts, rights, ready, empty, results, full.index(0), free.index(0), tiles, steps)),
            (multiply, (1, lefts, rights, ready, empty, results, full.index(1), free.index(1), tiles, steps)),
            (run_epilogue_partition, (results, full, free, tensors, down, across, group, is_backward)),
            (run_load_partition, (left, right, lefts, rights, ready, empty, down, across, steps, group)),
        ],
        [4, 2, 1],
        [registers, registers, registers],
    )


@gluon.jit
def run_epilogue_partition(results, full, free, tensors, down, across, group: gl.constexpr, is_backward: gl.constexpr):
    if is_backward:
        finish_swiglu_backward(results, full, free, tensors, down, across, group)
    else:
        finish_gate(results, full, free, tensors, down, across, group)


@gluon.jit
def finish_gate(results, full, free, tensors, down, across, group: gl.constexpr):
    """Write a tile's two halves, which belong together, and their gate."""
    both, gated, rows, columns = tensors
    pieces: gl.constexpr = results.shape[0] // 2
    height: gl.constexpr = results.shape[1]
    width: gl.constexpr = results.shape[2]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // width, width // 8], [gl.num_warps(), 1], [1, 0])
    in_rows = gl.arange(0, height, gl.SliceLayout(1, layout))[:, None]
    in_columns = gl.arange(0, width, gl.SliceLayout(0, layout))[None, :]
    phase = 0
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = find_tile(tile, down, across, group)
        for which in range(2):
            mbarrier.wait(full.index(which), phase)
            r = ((row * 2 + which) * height + in_rows).to(gl.int64)
            for place in range(pieces // 2):
                c = (column * (pieces // 2) + place) * width + in_columns
                is_in = (r < rows) & (c < columns)
                x = results.index(which * pieces + place).load(layout)
                up = results.index(which * pieces + pieces // 2 + place).load(layout)
                gl.store(both + r * (2 * columns) + c, x, is_in)
                gl.store(both + r * (2 * columns) + columns + c, up, is_in)
                a = x.to(gl.float32)
                b = up.to(gl.float32)
                gl.store(gated + r * columns + c, (a * sigmoid(a) * b).to(gl.bfloat16), is_in)
            mbarrier.arrive(free.index(which), count=1)
        phase ^= 1


@gluon.jit
def finish_swiglu_backward(results, full, free, tensors, down, across, group: gl.constexpr):
    """Write the gradients of a gate's inputs side by side, and the gate once more. Inputs are read two pieces ahead."""
    x, up, of_both, gated, rows, columns, inputs, arrived = tensors
    pieces: gl.constexpr = results.shape[0] // 2
    height: gl.constexpr = results.shape[1]
    width: gl.constexpr = results.shape[2]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // width, width // 8], [gl.num_warps(), 1], [1, 0])
    gl.static_assert(pieces % 2 == 0, "both slots begin every tile in the same phase")
    in_rows = gl.arange(0, height, gl.SliceLayout(1, layout))[:, None]
    in_columns = gl.arange(0, width, gl.SliceLayout(0, layout))[None, :]
    phase = 0
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = find_tile(tile, down, across, group)
        prefetch_gate_inputs(x, up, inputs, arrived, row, column, 0, pieces)
        prefetch_gate_inputs(x, up, inputs, arrived, row, column, 1, pieces)
        for place in range(2 * pieces):
            which = place // pieces
            slot = place % 2
            mbarrier.wait(arrived.index(slot), (place // 2) & 1)
            a = inputs.index(2 * slot).load(layout).to(gl.float32)
            b = inputs.index(2 * slot + 1).load(layout).to(gl.float32)
            if place < 2 * pieces - 2:
                prefetch_gate_inputs(x, up, inputs, arrived, row, column, place + 2, pieces)
            if place % pieces == 0:
                mbarrier.wait(full.index(which), phase)
            g = results.index(place).load(layout).to(gl.float32)
            if place % pieces == pieces - 1:
                mbarrier.arrive(free.index(which), count=1)
            r = (row * 2 + which) * height
            c = (column * pieces + place % pieces) * width
            is_in = (in_rows < rows - r) & (in_columns < columns - c)
            s = sigmoid(a)
            to_both = of_both + r.to(gl.int64) * (2 * columns) + c + (in_rows * (2 * columns) + in_columns)
            gl.store(to_both, (g * b * s * (1.0 + a * (1.0 - s))).to(gl.bfloat16), is_in)
            gl.store(to_both + columns, (g * a * s).to(gl.bfloat16), is_in)
            to = gated + r.to(gl.int64) * columns + c + (in_rows * columns + in_columns)
            gl.store(to, (a * s * b).to(gl.bfloat16), is_in)
        phase ^= 1


@gluon.jit
def prefetch_gate_inputs(x, up, inputs, arrived, row, column, place, pieces: gl.constexpr):
    """Ask for a piece of a gate's inputs, where the piece before the last was."""
    height: gl.constexpr = x.block_shape[0]
    width: gl.constexpr = x.block_shape[1]
    slot = place % 2
    bar = arrived.index(slot)
    mbarrier.expect(bar, x.block_type.nbytes + up.block_type.nbytes)
    at = [(row * 2 + place // pieces) * height, (column * pieces + place % pieces) * width]
    async_load(x, at, bar, inputs.index(2 * slot))
    async_load(up, at, bar, inputs.index(2 * slot + 1))


@gluon.jit
def sigmoid(x):
    return 1 / (1 + gl.exp(-x))
