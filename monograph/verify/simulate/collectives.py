"""Collectives as functions of what all members give: the result of every class of ranks, from the classes' operands."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from monograph.axes import Group
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, REDUCE_SCATTER
from monograph.errors import MonographError
from monograph.graph.step_graph import StepGraph
from monograph.plurals import counted
from monograph.verify.simulate.coordinates import Coordinates, Partition

COLLECTIVES = frozenset((ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, ALL_TO_ALL))
_REDUCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


class SimulationError(MonographError):
    """A step that no mesh could run: a collective whose members do not fit each other, or an op that fails."""


def run_collective(
    op: Any, operands: Partition, arguments: Sequence[Sequence[Any]], coordinates: Coordinates
) -> tuple[Partition, list[Tensor]]:
    """The partition of a collective's results, with one result for each class.

    `arguments` are the call's arguments for each class of `operands`; the group is the last of them.
    """
    group = Group(arguments[0][-1])
    by_place = op in (REDUCE_SCATTER, ALL_TO_ALL)
    part = coordinates.exchange(operands, group, by_place=by_place)
    table, done = coordinates.members(group), {}
    results = []
    for first in part.firsts:
        members = table[first]
        given = [arguments[number] for number in operands.labels[members]]
        place = int((members == first).nonzero()[0][0])
        if op is ALL_TO_ALL:
            results.append(_exchange_rows(given, place))
            continue
        key = operands.labels[members].tobytes()
        if key not in done:
            done[key] = _combine(op, given)
        results.append(done[key][place] if op is REDUCE_SCATTER else done[key])
    return part, results


def _combine(op: Any, given: Sequence[Sequence[Any]]) -> Any:
    """What all members of one group get, or for a reduce_scatter their pieces in order."""
    values = [arguments[0] for arguments in given]
    if op is ALL_GATHER:
        _check_size(given[0][1], len(values))
        return values[0] if len(values) == 1 else torch.cat(values)
    reduction = _REDUCTIONS[given[0][1]]
    total = values[0]
    for value in values[1:]:
        total = reduction(total, value)
    if op is ALL_REDUCE:
        return total
    _check_size(given[0][2], len(values))
    if total.shape[0] % len(values):
        raise SimulationError(f"a reduce_scatter over {counted(len(values), 'rank')} gets {total.shape[0]} rows")
    return total.chunk(len(values))


def _check_size(said: int, size: int) -> None:
    if said != size:
        raise SimulationError(f"a collective is told that its group has {said} ranks, and it has {size}")


def _exchange_rows(given: Sequence[Sequence[Any]], place: int) -> Tensor:
    """The rows that every member sends to the one at `place`."""
    pieces = []
    for sender, (rows, _, sent, _) in enumerate(given):
        start = sum(sent[:place])
        piece = rows[start : start + sent[place]]
        received = given[place][1][sender]
        if len(sent) != len(given) or sum(sent) != rows.shape[0] or received != sent[place]:
            raise SimulationError(
                f"an all_to_all does not fit: member {sender} sends {sent[place]} rows to member {place}, "
                f"which expects {received}"
            )
        pieces.append(piece)
    return torch.cat(pieces)


def count_collectives(graph: StepGraph) -> Counter[tuple[str, str]]:
    """How often a graph has each collective over each group."""
    found: Counter[tuple[str, str]] = Counter()
    for node in graph.nodes:
        if node.target in COLLECTIVES:
            group = next(value for value in reversed(node.args) if isinstance(value, str) and value in set(Group))
            found[str(node.target).split(".")[1].removesuffix("_into_tensor").removesuffix("_tensor"), group] += 1
    return found
