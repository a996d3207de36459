"""Which blocks of a model are identical: a capture of three of them tells what all of them do.

Alike means: the same modules with the same settings, parameters and buffers of the same shapes, sharded in the same
way. A block that differs in anything that can be seen, its own number for instance, is not alike, and is captured.
"""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from monograph.models.model import Model
from monograph.parallel.param_table import ParamTable

_PRIVATE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training")


@dataclass(frozen=True)
class BlockRepeat:
    """Blocks in a row that are identical, by their number among all blocks."""

    first: int
    last: int
    paths: tuple[str, ...] = field(default=(), compare=False)
    """Of all blocks of the model, by number."""

    @property
    def captured(self) -> tuple[int, int, int]:
        """The blocks that are traced: the first, the second (the template of all skipped ones) and the last."""
        return self.first, self.first + 1, self.last

    @property
    def skipped(self) -> range:
        """Those that capture leaves out."""
        return range(self.first + 2, self.last)


def find_block_repeats(model: Model, table: ParamTable, units: Collection[str] | None = None) -> list[BlockRepeat]:
    """Runs with blocks to leave out; of a pipeline stage, among its `units`."""
    paths = tuple(model.blocks())
    kinds = [
        describe_block(block, table, path) if units is None or path in units else object()
        for path, block in model.blocks().items()
    ]
    found, start = [], 0
    for _, alike in itertools.groupby(kinds):
        length = len(list(alike))
        found.append(BlockRepeat(start, start + length - 1, paths))
        start += length
    return [run for run in found if run.skipped]


def find_skipped_blocks(model: Model, runs: Sequence[BlockRepeat]) -> frozenset[nn.Module]:
    """The blocks that are not captured."""
    blocks = list(model.blocks().values())
    return frozenset(blocks[number] for run in runs for number in run.skipped)


def describe_block(block: nn.Module, table: ParamTable, path: str) -> Any:
    """All that decides what a block computes, and on which part of its parameters."""
    slots = [
        (slot.name.removeprefix(f"{path}."), slot.shape, slot.cuts, slot.shard)
        for slot in table
        if slot.name.startswith(f"{path}.")
    ]
    return describe_module(block), slots


def describe_setting(value: Any) -> Any:
    """A plain value as it prints, an object of ours by what it holds. What prints with its address is like no other."""
    if type(value).__module__.startswith("monograph.") and type(value).__repr__ is object.__repr__:
        return type(value), [(name, describe_setting(held)) for name, held in sorted(vars(value).items())]
    return repr(value)


def describe_module(module: nn.Module) -> Any:
    """A module's settings and hooks, and those of all modules in it."""
    settings: list[Any] = []
    for name, value in sorted(vars(module).items()):
        if "_hooks" in name:  # by number, which is no other module's
            settings.append([describe_setting(hook) for hook in getattr(value, "values", tuple)()])
        elif name not in _PRIVATE:
            settings.append((name, describe_setting(value)))
    tensors = [
        (name, None if value is None else (tuple(value.shape), value.dtype))
        for name, value in itertools.chain(module._parameters.items(), module._buffers.items())
    ]
    inside = [(name, describe_module(child)) for name, child in module.named_children()]
    return type(module), settings, tensors, inside
