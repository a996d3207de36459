"""Starting values of one rank's shards: each rank draws only the rows it stores, and gets what one device would."""

import math
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from monograph.models.init import Constant, InitSpec
from monograph.models.random_normal import draw
from monograph.parallel.param_table import Extent, ParamTable, Slot


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
    yield from find_runs(target, slot.shape, slot.extents(rank))


def find_runs(target: Tensor, shape: Sequence[int], extents: Sequence[Extent]) -> Iterator[tuple[int, Tensor]]:
    """The same for a part of a parameter: rows are what all dims but the last count."""
    if len(shape) == 1:
        yield 0, target.unsqueeze(0)
        return
    per_entry = math.prod(shape[1:-1])
    first = extents[0]
    if all(extent.size == size for extent, size in zip(extents[1:-1], shape[1:-1], strict=True)):
        yield first.start * per_entry, target.view(-1, target.shape[-1])  # whole entries: the next one's rows follow on
        return
    for index in range(first.size):
        for row, rows in find_runs(target[index], shape[1:], extents[1:]):
            yield (first.start + index) * per_entry + row, rows
