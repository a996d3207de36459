"""Stages as data: which of a model's units each stage runs. Loads without torch.

A stage is a run of units that follow each other. `auto` balances the stages by the units' costs; otherwise the user
lists the first unit of every stage but the first, which begins with the model's first unit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from monograph.errors import ConfigError, did_you_mean
from monograph.plurals import counted

AUTO = "auto"


@dataclass(frozen=True)
class StagePlan:
    """Unit paths by stage, in order."""

    stages: tuple[tuple[str, ...], ...]

    @property
    def count(self) -> int:
        return len(self.stages)

    def stage_of(self, unit: str) -> int:
        """The stage that runs a unit."""
        return next(number for number, units in enumerate(self.stages) if unit in units)

    def describe(self) -> str:
        """One line for a log: `0: embedding .. layers.3, 1: layers.4 .. head`."""
        ends = ((units[0], units[-1]) for units in self.stages)
        named = (first if first == last else f"{first} .. {last}" for first, last in ends)
        return ", ".join(f"{number}: {units}" for number, units in enumerate(named))


def plan_stages(units: Sequence[str], costs: Sequence[float], count: int, firsts: Sequence[str]) -> StagePlan:
    """The stages of a model; `firsts` is (auto,) or the first unit of every stage after the first one."""
    if count > len(units):
        raise ConfigError(
            f"{count} pipeline stages are asked for and the model has {counted(len(units), 'unit')}",
            why="a stage runs at least one unit",
            do="use a smaller pipeline_parallel_degree or fewer pipeline_virtual_stages",
        )
    starts = balance(costs, count) if tuple(firsts) == (AUTO,) else _find_starts(units, count, firsts)
    ends = [*starts[1:], len(units)]
    return StagePlan(tuple(tuple(units[start:end]) for start, end in zip(starts, ends, strict=True)))


def _find_starts(units: Sequence[str], count: int, firsts: Sequence[str]) -> list[int]:
    if len(firsts) != count - 1:
        raise ConfigError(
            f"pipeline_stages names {counted(len(firsts), 'unit')} and there are {count} stages",
            why="it lists the first unit of every stage but the first",
            do=f"name {count - 1} units, or auto",
        )
    starts = [0]
    for first in firsts:
        if first not in units:
            raise ConfigError(
                f"pipeline_stages: the model has no unit '{first}'",
                why=f"its units are {units[0]}, {units[1] if len(units) > 1 else ''}, ..., {units[-1]}",
                do=did_you_mean(first, units),
            )
        start = units.index(first)
        if start <= starts[-1]:
            before = units[starts[-1]]
            raise ConfigError(
                f"pipeline_stages: '{first}' does not come after '{before}'",
                why="stages follow the order of the units, and none is empty",
                do="list first units in the order of the model",
            )
        starts.append(start)
    return starts


def balance(costs: Sequence[float], count: int) -> list[int]:
    """Where stages start so that the most expensive one is as cheap as can be, and all have a unit.

    Of equally good divisions the one with the smaller squares of costs is taken; then the one with more in front, whose
    ranks wait less at the end.
    """
    sums = [0.0, *accumulate(costs)]
    units = len(costs)
    best: list[dict[int, tuple[float, float]]] = [{0: (0.0, 0.0)}]
    starts: list[dict[int, int]] = [{}]
    for stage in range(1, count + 1):
        row: dict[int, tuple[float, float]] = {}
        begins: dict[int, int] = {}
        for end in range(stage, units - (count - stage) + 1):
            for begin, (most, squares) in best[stage - 1].items():
                if begin >= end:
                    continue
                cost = sums[end] - sums[begin]
                value = (max(most, cost), squares + cost * cost)
                if end not in row or value <= row[end]:
                    row[end], begins[end] = value, begin
        best.append(row)
        starts.append(begins)
    found, end = [], units
    for stage in range(count, 0, -1):
        end = starts[stage][end]
        found.append(end)
    return found[::-1]
