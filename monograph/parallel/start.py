"""Starting values of one rank's shards: each rank draws only the rows it stores, and gets what one device would."""

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from monograph.models.init import Constant, Start, draw_rows, rows_in_piece
from monograph.parallel.param_table import ParamTable, Slot

PIECES_AT_ONCE = 16
"""What one thread draws and copies at a time: enough to keep it busy, few enough for all threads to end together."""


def fill_shards(
    shards: Mapping[str, Tensor], table: ParamTable, starts: Mapping[str, Start], *, seed: int, rank: int
) -> None:
    """Write the starting values into all of a rank's shards, with every processor this machine has."""
    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        parts: list[Future[None]] = []
        for slot in table:
            parts += fill_shard(shards[slot.name], slot, starts[slot.name], seed=seed, rank=rank, pool=pool)
        for part in parts:
            part.result()


@torch.no_grad()
def fill_shard(
    local: Tensor, slot: Slot, start: Start, *, seed: int, rank: int, pool: ThreadPoolExecutor
) -> list[Future[None]]:
    """Begin to write the starting values of one shard, part by part; padding becomes zero."""
    target = slot.valid_part(local, rank)
    if target.numel() < local.numel():
        local.zero_()
    if isinstance(start, Constant):
        target.fill_(start.value)
        return []
    last = slot.extents(rank)[-1]
    columns = slice(last.start, last.start + last.size)

    @torch.no_grad()
    def fill(first: int, stop: int, rows: Tensor) -> None:
        rows.copy_(draw_rows(seed, slot.name, slot.shape, start.std, first, stop)[:, columns])

    return [pool.submit(fill, *part) for part in plan_parts(target, slot, rank)] if target.numel() else []


def plan_parts(target: Tensor, slot: Slot, rank: int) -> Iterator[tuple[int, int, Tensor]]:
    """First and last row of the whole parameter, and the place in this rank's shard they belong to, part by part."""
    extents = slot.extents(rank)
    step = PIECES_AT_ONCE * rows_in_piece(slot.shape[-1])
    if len(slot.shape) == 1:
        yield 0, 1, target.unsqueeze(0)
    elif len(slot.shape) == 2:
        for row in range(0, extents[0].size, step):
            stop = min(extents[0].size, row + step)
            yield extents[0].start + row, extents[0].start + stop, target[row:stop]
    else:
        first, middle = extents[:2]
        for index in range(first.size):
            top = (first.start + index) * slot.shape[1] + middle.start
            for row in range(0, middle.size, step):
                stop = min(middle.size, row + step)
                yield top + row, top + stop, target[index, row:stop]
