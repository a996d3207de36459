"""Matmuls tile by tile, in Gluon, for GPUs of compute capability 9: producer and MMA warps, without the epilogue.

One warp fetches both operands, two groups of four warps multiply half of a tile's rows each and leave the result in
shared memory. Who finishes it does so while the next tile is multiplied, and it takes no time of its own. Where the
multiplying warps finish a tile themselves (as Triton's do, and as cuBLAS would) the next one waits for them.
"""

from monograph.compat.triton import gl, gluon, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

ROWS, COLUMNS, DEPTH = 128, 256, 64
"""The tile is ROWS x COLUMNS; DEPTH is what one step reads of the dimension that is summed over."""
STAGES = 3
"""Steps whose operands are in shared memory at a time; with one tile's result they nearly fill it."""
PIECE = 32
"""Columns of a result that are written and read together."""
REGISTERS = 168
"""Of a thread: two groups of four warps that multiply and one that does the rest have a third of a processor's each."""
async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
"""Called so from Triton 3.9 on."""


@gluon.jit
def find_tile(tile, down, across, group: gl.constexpr):
    """Which rows and columns of tiles: down a group of rows, then on to the right. So neighbours share operands."""
    wide = group * across
    first = tile // wide * group
    high = min(down - first, group)
    return first + (tile % wide) % high, (tile % wide) // high


@gluon.jit
def make_barriers(number: gl.constexpr, count: gl.constexpr):
    """Barriers that each wait for so many arrivals."""
    bars = gl.allocate_shared_memory(gl.int64, [number, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(number):
        mbarrier.init(bars.index(each), count=count)
    return bars


@gluon.jit
def allocate_tiles(number: gl.constexpr, source):
    """Shared memory for so many tiles of a matrix."""
    shape: gl.constexpr = [number] + source.block_shape  # noqa: RUF005 - Gluon knows no starred lists
    return gl.allocate_shared_memory(source.dtype, shape, source.layout)


@gluon.jit
def run_load_partition(left, right, lefts, rights, ready, empty, down, across, steps, group: gl.constexpr):
    """Ask for the operands of every step of every tile of this program, as soon as there is room for them.

    The right operand's columns lie in two parts that are multiplied side by side (three dims), or its rows are what is
    summed over (two).
    """
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
            if len(right.block_shape) == 3:
                async_load(right, [0, column * columns, step * depth], bar, rights.index(stage))
            else:
                async_load(right, [step * depth, column * columns], bar, rights.index(stage))
            at += 1


@gluon.jit
def multiply(which: gl.constexpr, lefts, rights, ready, empty, results, full, free, tiles, steps):
    """One half of the rows of every tile, left in shared memory for those who finish it."""
    stages: gl.constexpr = lefts.shape[0]
    rows: gl.constexpr = lefts.shape[1] // 2
    depth: gl.constexpr = lefts.shape[2]
    pieces: gl.constexpr = results.shape[0] // 2
    columns: gl.constexpr = pieces * results.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])
    at = 0
    phase = 1
    for _ in range(gl.program_id(0), tiles, gl.num_programs(0)):
        total = gl.zeros([rows, columns], gl.float32, layout)
        for step in range(steps):
            stage = at % stages
            mbarrier.wait(ready.index(stage), (at // stages) & 1)
            left = lefts.index(stage).slice(rows * which, rows)
            if len(rights.shape) == 4:
                right = rights.index(stage).reshape([columns, depth]).permute([1, 0])
            else:
                right = rights.index(stage)
            total = warpgroup_mma(left, right, total, is_async=True)
            # The step before is done, and what it read may be overwritten.
            total = warpgroup_mma_wait(num_outstanding=1, deps=(total,))
            mbarrier.arrive(empty.index((at + stages - 1) % stages), count=1, pred=step > 0)
            at += 1
        total = warpgroup_mma_wait(num_outstanding=0, deps=(total,))
        mbarrier.arrive(empty.index((at + stages - 1) % stages), count=1)
        mbarrier.wait(free, phase)
        phase ^= 1
        store_accumulator(total.to(gl.bfloat16), results, which * pieces)
        mbarrier.arrive(full, count=1)


@gluon.jit
def store_accumulator(x, results, place: gl.constexpr):
    """Write a matrix into shared memory, piece by piece from a place on."""
    if x.shape[1] == results.shape[2]:
        results.index(place).store(x)
    else:
        pieces: gl.constexpr = x.shape[1] // results.shape[2]
        one, other = split_columns(x)
        store_accumulator(one, results, place)
        store_accumulator(other, results, place + pieces // 2)


@gluon.jit
def split_columns(x):
    """A matrix's left and right half. A thread that has a number of one also has its counterpart: nothing moves."""
    rows: gl.constexpr = x.shape[0]
    half: gl.constexpr = x.shape[1] // 2
    return gl.split(gl.permute(gl.reshape(x, [rows, 2, half]), [0, 2, 1]))
