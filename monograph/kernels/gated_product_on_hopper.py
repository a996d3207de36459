"""Products that compute a gate, or its backward, while their results are still in the processor; in Gluon.

Written for GPUs of compute capability 9: one warp fetches tiles of both operands, two groups of four warps multiply half
of the rows each, and two more warps finish what these leave in shared memory while the next tile is multiplied. So
the gate takes no time of its own, and its operands are not read again. cuBLAS can only finish a tile by itself, and
where the multiplying warps do it (as Triton's do) products wait for it.

Every value is rounded where a product and a gate of their own would round it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
"""Called so from Triton 3.9 on."""
ROWS, COLUMNS, DEPTH = 128, 256, 64
"""Of a tile of the product, and of both operands in one step: three steps and a result fill the shared memory."""
STAGES = 3
PIECE = 32
"""Columns that are finished at a time."""
FORWARD_GROUP, BACKWARD_GROUP = 16, 8
"""Tiles below each other that are computed one after the other: they read the same columns."""
REGISTERS = 168
"""Of a thread: two groups of four warps that multiply and one that does the rest have a third of a processor's each."""


@gluon.jit
def find_tile(tile, down, across, group: gl.constexpr):
    """Which rows and columns of tiles: down a group of rows, then on to the right."""
    wide = group * across
    first = tile // wide * group
    high = min(down - first, group)
    return first + (tile % wide) % high, (tile % wide) // high


@gluon.jit
def fetch(left, right, lefts, rights, ready, empty, down, across, steps, group: gl.constexpr, is_backward: gl.constexpr):
    """Ask for the operands of every step of every tile of this program, as soon as there is room for them."""
    stages: gl.constexpr = lefts.shape[0]
    rows: gl.constexpr = left.block_shape[0]
    depth: gl.constexpr = left.block_shape[1]
    columns: gl.constexpr = right.block_shape[1]
    at = 0
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = find_tile(tile, down, across, group)
        for step in range(steps):
            stage = at % stages
            mbarrier.wait(empty.index(stage), ((at // stages) & 1) ^ 1)
            bar = ready.index(stage)
            mbarrier.expect(bar, left.block_type.nbytes + right.block_type.nbytes)
            async_load(left, [row * rows, step * depth], bar, lefts.index(stage))
            if is_backward:
                async_load(right, [step * depth, column * columns], bar, rights.index(stage))
            else:
                async_load(right, [0, column * columns, step * depth], bar, rights.index(stage))
            at += 1


@gluon.jit
def halve(x):
    """A matrix's left and right half. Both are in the threads that have the whole."""
    rows: gl.constexpr = x.shape[0]
    half: gl.constexpr = x.shape[1] // 2
    return gl.split(gl.permute(gl.reshape(x, [rows, 2, half]), [0, 2, 1]))


@gluon.jit
def leave(x, results, place: gl.constexpr):
    """Write a matrix into shared memory, piece by piece from a place on."""
    if x.shape[1] == results.shape[2]:
        results.index(place).store(x)
    else:
        pieces: gl.constexpr = x.shape[1] // results.shape[2]
        one, other = halve(x)
        leave(one, results, place)
        leave(other, results, place + pieces // 2)


@gluon.jit
def multiply(which: gl.constexpr, lefts, rights, ready, empty, results, full, free, tiles, steps, is_backward: gl.constexpr):
    """One half of the rows of every tile, left in shared memory for those who finish it."""
    stages: gl.constexpr = lefts.shape[0]
    rows: gl.constexpr = lefts.shape[1] // 2
    pieces: gl.constexpr = results.shape[0] // 2
    columns: gl.constexpr = pieces * results.shape[2]
    depth: gl.constexpr = lefts.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    at = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        total = gl.zeros([rows, columns], gl.float32, layout)
        for step in range(steps):
            stage = at % stages
            mbarrier.wait(ready.index(stage), (at // stages) & 1)
            left = lefts.index(stage).slice(rows * which, rows)
            if is_backward:
                right = rights.index(stage)
            else:
                right = rights.index(stage).reshape([columns, depth]).permute([1, 0])
            total = warpgroup_mma(left, right, total, is_async=True)
            # The step before is done, and what it read may be overwritten.
            total = warpgroup_mma_wait(num_outstanding=1, deps=(total,))
            mbarrier.arrive(empty.index((at + stages - 1) % stages), count=1, pred=step > 0)
            at += 1
        total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
        mbarrier.arrive(empty.index((at + stages - 1) % stages), count=1)
        mbarrier.wait(free, phase)
        phase ^= 1
        leave(total.to(gl.bfloat16), results, which * pieces)
        mbarrier.arrive(full, count=1)


@gluon.jit
def sigmoid(x):
    return 1 / (1 + gl.exp(-x))


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
def ask(x, up, inputs, arrived, row, column, place, pieces: gl.constexpr):
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
def finish_gate_backward(results, full, free, tensors, down, across, group: gl.constexpr):
    """Write the gradients of a gate's inputs side by side, and the gate once more. Inputs are read two pieces ahead."""
    x, up, of_both, gated, rows, columns, inputs, arrived = tensors
    pieces: gl.constexpr = results.shape[0] // 2
    height: gl.constexpr = results.shape[1]
    width: gl.constexpr = results.shape[2]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // width, width // 8], [gl.num_warps(), 1], [1, 0])
    in_rows = gl.arange(0, height, gl.SliceLayout(1, layout))[:, None]
    in_columns = gl.arange(0, width, gl.SliceLayout(0, layout))[None, :]
    phase = 0
    for tile in range(gl.program_id(0), down * across, gl.num_programs(0)):
        row, column = find_tile(tile, down, across, group)
        ask(x, up, inputs, arrived, row, column, 0, pieces)
        ask(x, up, inputs, arrived, row, column, 1, pieces)
        for place in range(2 * pieces):
            which = place // pieces
            slot = place % 2
            mbarrier.wait(arrived.index(slot), (place // 2) & 1)
            a = inputs.index(2 * slot).load(layout).to(gl.float32)
            b = inputs.index(2 * slot + 1).load(layout).to(gl.float32)
            if place < 2 * pieces - 2:
                ask(x, up, inputs, arrived, row, column, place + 2, pieces)
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
def finish(results, full, free, tensors, down, across, group: gl.constexpr, is_backward: gl.constexpr):
    if is_backward:
        finish_gate_backward(results, full, free, tensors, down, across, group)
    else:
        finish_gate(results, full, free, tensors, down, across, group)


@gluon.jit
def make_barriers(number: gl.constexpr, count: gl.constexpr):
    bars = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(number):
        mbarrier.init(bars.index(each), count=count)
    return bars


@gluon.jit
def share(
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
    height: gl.constexpr = left.block_shape[0]
    lefts = gl.allocate_shared_memory(gl.bfloat16, [stages] + left.block_shape, left.layout)
    rights = gl.allocate_shared_memory(gl.bfloat16, [stages] + right.block_shape, right.layout)
    layout: gl.constexpr = gl.NVMMASharedLayout(2 * piece, 16, 2)
    results = gl.allocate_shared_memory(gl.bfloat16, [2 * width // piece, height // 2, piece], layout)
    ready = make_barriers(stages, 1)
    empty = make_barriers(stages, 2)
    full = make_barriers(2, 1)
    free = make_barriers(2, 1)
    tiles = down * across
    gl.warp_specialize(
        [
            (multiply, (0, lefts, rights, ready, empty, results, full.index(0), free.index(0), tiles, steps, is_backward)),
            (multiply, (1, lefts, rights, ready, empty, results, full.index(1), free.index(1), tiles, steps, is_backward)),
            (finish, (results, full, free, tensors, down, across, group, is_backward)),
            (fetch, (left, right, lefts, rights, ready, empty, down, across, steps, group, is_backward)),
        ],
        [4, 2, 1],
        [registers, registers, registers],
    )


@gluon.jit
def gated_product_kernel(
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
    share(left, right, tensors, down, across, steps, False, width, group, stages, piece, registers)


@gluon.jit
def product_gate_backward_kernel(
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
    inputs = gl.allocate_shared_memory(gl.bfloat16, [4] + x.block_shape, x.layout)
    tensors = (x, up, of_both, gated, rows, columns, inputs, make_barriers(2, 1))
    share(left, right, tensors, down, across, steps, True, width, group, stages, piece, registers)
