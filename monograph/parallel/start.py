"""Starting values of one rank's shards: each rank draws only the rows it stores, and gets what one device would."""

from collections.abc import Mapping

import torch
from torch import Tensor

from monograph.models.init import Constant, Each, Start, draw_rows, drawing
from monograph.parallel.param_table import ParamTable, Slot


def fill_shards(
    shards: Mapping[str, Tensor], table: ParamTable, starts: Mapping[str, Start], *, seed: int, rank: int
) -> None:
    """Write the starting values into all of a rank's shards, with every processor this machine has."""
    with drawing() as each:
        for slot in table:
            fill_shard(shards[slot.name], slot, starts[slot.name], seed=seed, rank=rank, each=each)


@torch.no_grad()
def fill_shard(local: Tensor, slot: Slot, start: Start, *, seed: int, rank: int, each: Each = map) -> None:
    """Write the starting values into a shard; padding becomes zero."""
    local.zero_()
    target = slot.valid_part(local, rank)
    if not target.numel():
        return
    if isinstance(start, Constant):
        target.fill_(start.value)
        return
    first, last = slot.extents(rank)[0], slot.extents(rank)[-1]
    columns = slice(last.start, last.start + last.size)
    if len(slot.shape) == 1:
        target.copy_(draw_rows(seed, slot.name, slot.shape, start.std, each=each)[0, columns])
    elif len(slot.shape) == 2:
        rows = draw_rows(seed, slot.name, slot.shape, start.std, first.start, first.start + first.size, each=each)
        target.copy_(rows[:, columns])
    else:
        middle, height = slot.extents(rank)[1], slot.shape[1]
        for index in range(first.size):
            top = (first.start + index) * height + middle.start
            drawn = draw_rows(seed, slot.name, slot.shape, start.std, top, top + middle.size, each=each)
            target[index].copy_(drawn[:, columns])
