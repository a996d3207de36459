"""Matmuls of all experts' rows, in Gluon: with SwiGLU in the epilogue, plain, and two of them added up.

Rows of an expert follow each other; a table says which expert and which rows each tile of rows belongs to, so that
nothing is read on the host. Tiles at the end of an expert's rows read rows of the next one, and do not write them.
"""

from monograph.compat.triton import gl, gluon, mbarrier, tl, triton, warpgroup_mma, warpgroup_mma_wait
from monograph.kernels.matmul_swiglu_on_hopper import sigmoid
from monograph.kernels.tiles_on_hopper import (
    allocate_tiles,
    async_load,
    find_tile,
    make_barriers,
    multiply,
    store_accumulator,
)

ENTRY = 4
"""Numbers of a tile in the table: expert, first row, end of the expert's rows; and one unused."""


@triton.jit
def expert_tiles_kernel(
    ends,
    table,
    experts,
    total,
    rows: tl.constexpr,
    expert_block: tl.constexpr,
    tile_block: tl.constexpr,
    entry: tl.constexpr,
):
    """Every tile's entry, and behind the last one (at tile_block) how many there are."""
    expert = tl.arange(0, expert_block)
    is_in = expert < experts
    end = tl.minimum(tl.load(ends + expert, is_in, 0).to(tl.int32), total)
    start = tl.minimum(tl.load(ends + expert - 1, is_in & (expert > 0), 0).to(tl.int32), total)
    tiles = tl.where(is_in & (end > start), (end - start + rows - 1) // rows, 0)
    through = tl.cumsum(tiles, 0)
    tile = tl.program_id(0) * 64 + tl.arange(0, 64)
    is_mine = (tile[:, None] >= (through - tiles)[None, :]) & (tile[:, None] < through[None, :])
    own = tl.sum(tl.where(is_mine, expert[None, :], 0), 1)
    first = tl.sum(tl.where(is_mine, start[None, :] + (tile[:, None] - (through - tiles)[None, :]) * rows, 0), 1)
    last = tl.sum(tl.where(is_mine, end[None, :], 0), 1)
    tl.store(table + tile * entry, own)
    tl.store(table + tile * entry + 1, first)
    tl.store(table + tile * entry + 2, last)
    if tl.program_id(0) == 0:
        tl.store(table + tile_block * entry, tl.sum(tiles, 0))


@gluon.jit
def expert_swiglu_kernel(
    left,
    gate,
    up,
    of_gate,
    of_up,
    gated,
    table,
    count,
    columns,
    across,
    steps,
    entry: gl.constexpr,
    group: gl.constexpr,
    stages: gl.constexpr,
    piece: gl.constexpr,
    registers: gl.constexpr,
):
    """Both matmuls of a gate, and the gate."""
    lefts = allocate_tiles(stages, left)
    gates = allocate_tiles(stages, gate)
    ups = allocate_tiles(stages, up)
    height: gl.constexpr = left.block_shape[0] // 2
    width: gl.constexpr = 2 * gate.block_shape[0]
    layout: gl.constexpr = gl.NVMMASharedLayout(2 * piece, 16, 2)
    results = gl.allocate_shared_memory(gl.bfloat16, [2 * width // piece, height, piece], layout)
    ready = make_barriers(stages, 1)
    empty = make_barriers(stages, 2)
    full = make_barriers(2, 1)
    free = make_barriers(2, 1)
    down = gl.load(count)
    tiles = down * across
    tensors = (of_gate, of_up, gated, columns)
    gl.warp_specialize(
        [
            (multiply_pair, (0, lefts, gates, ups, ready, empty, results, full.index(0), free.index(0), tiles, steps)),
            (multiply_pair, (1, lefts, gates, ups, ready, empty, results, full.index(1), free.index(1), tiles, steps)),
            (finish_expert_gate, (results, full, free, tensors, table, down, across, entry, group)),
            (
                load_pairs,
                (left, gate, up, lefts, gates, ups, ready, empty, table, columns, down, across, steps, entry, group),
            ),
        ],
        [4, 2, 1],
        [registers, registers, registers],
    )


@gluon.jit
def load_pairs(
    left,
    gate,
    up,
    lefts,
    gates,
    ups,
    ready,
    empty,
    table,
    columns,
    down,
    across,
    steps,
    entry: gl.constexpr,
    group: gl.constexpr,
):
    """Ask for the rows and both weights of every step."""
    stages: gl.constexpr = lefts.shape[0]
    depth: gl.constexpr = left.block_shape[1]
    width: gl.constexpr = gate.block_shape[0]
    at = 0
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = find_tile(tile, down, across, group)
        expert = gl.load(table + row * entry)
        first = gl.load(table + row * entry + 1)
        top = expert * columns + column * width
        for step in range(steps):
            stage = at % stages
            mbarrier.wait(empty.index(stage), ((at // stages) & 1) ^ 1)
            bar = ready.index(stage)
            mbarrier.expect(bar, left.block_type.nbytes + gate.block_type.nbytes + up.block_type.nbytes)
            async_load(left, [first, step * depth], bar, lefts.index(stage))
            async_load(gate, [top, step * depth], bar, gates.index(stage))
            async_load(up, [top, step * depth], bar, ups.index(stage))
            at += 1


@gluon.jit
def multiply_pair(which: gl.constexpr, lefts, gates, ups, ready, empty, results, full, free, tiles, steps):
    """One half of the rows of every tile, times both weights; left in shared memory for those who finish it."""
    stages: gl.constexpr = lefts.shape[0]
    rows: gl.constexpr = lefts.shape[1] // 2
    columns: gl.constexpr = gates.shape[1]
    pieces: gl.constexpr = results.shape[0] // 2
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    at = 0
    phase = 1
    for _ in range(gl.program_id(0), tiles, gl.num_programs(0)):
        a = gl.zeros([rows, columns], gl.float32, layout)
        b = gl.zeros([rows, columns], gl.float32, layout)
        for step in range(steps):
            stage = at % stages
            mbarrier.wait(ready.index(stage), (at // stages) & 1)
            left = lefts.index(stage).slice(rows * which, rows)
            a = warpgroup_mma(left, gates.index(stage).permute([1, 0]), a, is_async=True)
            b = warpgroup_mma(left, ups.index(stage).permute([1, 0]), b, is_async=True)
            # The step before is done, and what it read may be overwritten.
            a, b = warpgroup_mma_wait(num_outstanding=2, deps=(a, b))
            mbarrier.arrive(empty.index((at + stages - 1) % stages), count=1, pred=step > 0)
            at += 1
        a, b = warpgroup_mma_wait(num_outstanding=0, deps=(a, b))
        mbarrier.arrive(empty.index((at + stages - 1) % stages), count=1)
        mbarrier.wait(free, phase)
        phase ^= 1
        store_accumulator(a.to(gl.bfloat16), results, which * pieces)
        store_accumulator(b.to(gl.bfloat16), results, which * pieces + pieces // 2)
        mbarrier.arrive(full, count=1)


@gluon.jit
def finish_expert_gate(results, full, free, tensors, table, down, across, entry: gl.constexpr, group: gl.constexpr):
    """Write both matmuls' results and their gate."""
    of_gate, of_up, gated, columns = tensors
    pieces: gl.constexpr = results.shape[0] // 2
    height: gl.constexpr = results.shape[1]
    width: gl.constexpr = results.shape[2]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // width, width // 8], [gl.num_warps(), 1], [1, 0])
    in_rows = gl.arange(0, height, gl.SliceLayout(1, layout))[:, None]
    in_columns = gl.arange(0, width, gl.SliceLayout(0, layout))[None, :]
    phase = 0
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = find_tile(tile, down, across, group)
        first = gl.load(table + row * entry + 1)
        end = gl.load(table + row * entry + 2)
        for which in range(2):
            mbarrier.wait(full.index(which), phase)
            r = first + which * height + in_rows
            for place in range(pieces // 2):
                c = (column * (pieces // 2) + place) * width + in_columns
                is_in = (r < end) & (c < columns)
                x = results.index(which * pieces + place).load(layout)
                y = results.index(which * pieces + pieces // 2 + place).load(layout)
                to = r.to(gl.int64) * columns + c
                gl.store(of_gate + to, x, is_in)
                gl.store(of_up + to, y, is_in)
                a = x.to(gl.float32)
                b = y.to(gl.float32)
                gl.store(gated + to, (a * sigmoid(a) * b).to(gl.bfloat16), is_in)
            mbarrier.arrive(free.index(which), count=1)
        phase ^= 1


@gluon.jit
def expert_matmul_kernel(
    left,
    other_left,
    right,
    other_right,
    out,
    table,
    count,
    columns,
    weight_rows,
    across,
    steps,
    parts: gl.constexpr,
    entry: gl.constexpr,
    group: gl.constexpr,
    stages: gl.constexpr,
    piece: gl.constexpr,
    registers: gl.constexpr,
):
    """One matmul, or two added up; the weights' rows are summed over, or (three dims) are the result's columns."""
    lefts = allocate_tiles(stages, left)
    rights = allocate_tiles(stages, right)
    height: gl.constexpr = left.block_shape[0] // 2
    width: gl.constexpr = right.block_shape[1]
    layout: gl.constexpr = gl.NVMMASharedLayout(2 * piece, 16, 2)
    results = gl.allocate_shared_memory(gl.bfloat16, [2 * width // piece, height, piece], layout)
    ready = make_barriers(stages, 1)
    empty = make_barriers(stages, 2)
    full = make_barriers(2, 1)
    free = make_barriers(2, 1)
    down = gl.load(count)
    tiles = down * across
    total = steps * parts
    sizes = (weight_rows, down, across, steps)
    gl.warp_specialize(
        [
            (multiply, (0, lefts, rights, ready, empty, results, full.index(0), free.index(0), tiles, total)),
            (multiply, (1, lefts, rights, ready, empty, results, full.index(1), free.index(1), tiles, total)),
            (finish_expert_rows, (results, full, free, out, columns, table, down, across, entry, group)),
            (
                load_expert_operands,
                (left, other_left, right, other_right, lefts, rights, ready, empty, table, sizes, parts, entry, group),
            ),
        ],
        [4, 2, 1],
        [registers, registers, registers],
    )


@gluon.jit
def load_expert_operands(
    left,
    other_left,
    right,
    other_right,
    lefts,
    rights,
    ready,
    empty,
    table,
    sizes,
    parts: gl.constexpr,
    entry: gl.constexpr,
    group: gl.constexpr,
):
    """Ask for the operands of every step, of one matmul after the other."""
    weight_rows, down, across, steps = sizes
    at = 0
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = find_tile(tile, down, across, group)
        top = gl.load(table + row * entry) * weight_rows
        first = gl.load(table + row * entry + 1)
        at = load_steps(left, right, lefts, rights, ready, empty, first, top, column, steps, at)
        if parts == 2:
            at = load_steps(other_left, other_right, lefts, rights, ready, empty, first, top, column, steps, at)


@gluon.jit
def load_steps(left, right, lefts, rights, ready, empty, first, top, column, steps, at):
    """The steps of one matmul; returns how many were asked for so far."""
    stages: gl.constexpr = lefts.shape[0]
    depth: gl.constexpr = left.block_shape[1]
    width: gl.constexpr = right.block_shape[1]
    for step in range(steps):
        stage = at % stages
        mbarrier.wait(empty.index(stage), ((at // stages) & 1) ^ 1)
        bar = ready.index(stage)
        mbarrier.expect(bar, left.block_type.nbytes + right.block_type.nbytes)
        async_load(left, [first, step * depth], bar, lefts.index(stage))
        if len(right.block_shape) == 3:
            async_load(right, [0, top + column * width, step * depth], bar, rights.index(stage))
        else:
            async_load(right, [top + step * depth, column * width], bar, rights.index(stage))
        at += 1
    return at


@gluon.jit
def finish_expert_rows(
    results, full, free, out, columns, table, down, across, entry: gl.constexpr, group: gl.constexpr
):
    """Write a tile's rows that belong to its expert."""
    pieces: gl.constexpr = results.shape[0] // 2
    height: gl.constexpr = results.shape[1]
    width: gl.constexpr = results.shape[2]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // width, width // 8], [gl.num_warps(), 1], [1, 0])
    in_rows = gl.arange(0, height, gl.SliceLayout(1, layout))[:, None]
    in_columns = gl.arange(0, width, gl.SliceLayout(0, layout))[None, :]
    phase = 0
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = find_tile(tile, down, across, group)
        first = gl.load(table + row * entry + 1)
        end = gl.load(table + row * entry + 2)
        for which in range(2):
            mbarrier.wait(full.index(which), phase)
            r = first + which * height + in_rows
            for place in range(pieces):
                c = (column * pieces + place) * width + in_columns
                x = results.index(which * pieces + place).load(layout)
                gl.store(out + r.to(gl.int64) * columns + c, x, (r < end) & (c < columns))
            mbarrier.arrive(free.index(which), count=1)
        phase ^= 1
