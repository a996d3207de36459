"""Starting values of one rank's shards: each rank draws only the rows it stores, and gets what one device would."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from monograph.models.init import Constant, InitSpec
from monograph.models.random_normal import draw
from monograph.parallel.param_table import ParamTable, Slot


@torch.no_grad()
def fill_shards(
    shards: Mapping[str, Tensor], table: ParamTable, init_specs: Mapping[str, InitSpec], *, seed: int, rank: int
) -> None:
    """Write the starting values into all of a rank's shards; padding becomes zero."""
    for slot in table:
        fill_shard(shards[slot.name], slot, init_specs[slot.name], seed=seed, rank=rank)


def fill_shard(local: Tensor, slot: Slot, start: InitSpec, *, seed: int, rank: int) -> None:
    """One shard: what this rank stores of a parameter."""
    target = slot.valid_part(local, rank)
    if target.numel() < local.numel():
        local.zero_()
    if isinstance(start, Constant):
        target.fill_(start.value)
    elif target.numel():
        column = slot.extents(rank)[-1].start
        for first, rows in find_contiguous_runs(target, slot, rank):
            draw(rows, seed, slot.name, width=slot.shape[-1], std=start.std, row=first, column=column)


def find_contiguous_runs(target: Tensor, slot: Slot, rank: int) -> Iterator[tuple[int, Tensor]]:
    """Rows that follow each other in the whole parameter: the first one's number there, and their place here."""
    extents = slot.extents(rank)
    if len(slot.shape) == 1:
        yield 0, target.unsqueeze(0)
    elif len(slot.shape) == 2:
        yield extents[0].start, target
    else:
        first, middle = extents[:2]
        if middle.size == slot.shape[1]:  # whole experts: the next one's rows follow on
            yield first.start * slot.shape[1], target.view(-1, target.shape[-1])
        else:
            for index in range(first.size):
                yield (first.start + index) * slot.shape[1] + middle.start, target[index]
