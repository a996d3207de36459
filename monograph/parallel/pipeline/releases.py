"""When a rank of a pipeline knows that what it handed on has been read: its memory is free from then on. Without torch.

A rank is told nothing about its sends. But what it receives was computed somewhere, after something else had been
received there: an action that has its input knows of everything that had to happen before.
"""

from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

from monograph.parallel.pipeline.actions import Action, ActionKind
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.transfers import GRADIENT_MAKERS

Releases = Mapping[Action, tuple[Action, ...]]
"""Action -> what was read by others when it has its input, named by sends; what stays on the rank is named alike."""
NOTHING: Releases = MappingProxyType({})


def find_releases(schedule: Schedule, rank: int) -> Releases:
    """The releases of a rank of a checked schedule; what is in none of them is read by the end of the update."""
    rows, known, places = _study(schedule)
    columns = list(zip(*(known[part] for part in rows[rank]), strict=True))
    found: dict[Action, tuple[Action, ...]] = {}
    for index, part in enumerate(rows[rank]):
        handed = find_hand_over(part, schedule.stages)
        if handed is None:
            continue
        reader, place = places[find_reader(handed, places)]
        later = bisect_right(columns[reader], place, lo=index + 1)
        if later < len(rows[rank]):
            found[rows[rank][later]] = (*found.get(rows[rank][later], ()), handed)
    return found


@lru_cache(maxsize=2)
def _study(
    schedule: Schedule,
) -> tuple[list[list[Action]], dict[Action, list[int]], dict[Action, tuple[int, int]]]:
    """What all ranks compute, what each action knows, and where actions are: the same for every rank that asks."""
    rows = [[part for action in row for part in action.parts if not part.is_transfer] for row in schedule.actions]
    places = {part: (owner, index) for owner, row in enumerate(rows) for index, part in enumerate(row)}
    return rows, _find_known(schedule, rows), places


def find_hand_over(part: Action, stages: int) -> Action | None:
    """What an action hands on to another stage, named as if it were sent; None for the last in a row."""
    if part.kind is ActionKind.FORWARD and part.stage + 1 < stages:
        return Action(part.stage, ActionKind.SEND_CARRY, part.micro_batch)
    if part.kind in GRADIENT_MAKERS and part.stage > 0:
        return Action(part.stage, ActionKind.SEND_GRAD, part.micro_batch)
    return None


def find_reader(handed: Action, places: Mapping[Action, tuple[int, int]]) -> Action:
    """The action that reads it."""
    stage, number = handed.partner.stage, handed.micro_batch
    kinds = (ActionKind.FORWARD,) if handed.kind is ActionKind.SEND_CARRY else GRADIENT_MAKERS
    return next(part for kind in kinds if (part := Action(stage, kind, number)) in places)


def _find_known(schedule: Schedule, rows: list[list[Action]]) -> dict[Action, list[int]]:
    """How many actions of every rank are known to have ended when an action has its input."""
    made = {find_hand_over(part, schedule.stages): part for row in rows for part in row}
    owner = {part: rank for rank, row in enumerate(rows) for part in row}
    now = [[0] * schedule.ranks for _ in rows]
    found: dict[Action, list[int]] = {}
    ended: dict[Action, list[int]] = {}
    is_moving = True
    while is_moving:
        is_moving = False
        for rank, row in enumerate(rows):
            while now[rank][rank] < len(row):
                part = row[now[rank][rank]]
                source = find_source(part, schedule.stages)
                maker = made[source] if source is not None else None
                if maker is not None and maker not in ended:
                    break
                if maker is not None and owner[maker] != rank:
                    now[rank] = [max(pair) for pair in zip(now[rank], ended[maker], strict=True)]
                found[part] = list(now[rank])
                now[rank][rank] += 1
                ended[part] = list(now[rank])
                is_moving = True
    return found


def find_source(part: Action, stages: int) -> Action | None:
    """What an action gets from another stage, named by its send."""
    if part.kind is ActionKind.FORWARD and part.stage > 0:
        return Action(part.stage - 1, ActionKind.SEND_CARRY, part.micro_batch)
    if part.kind in GRADIENT_MAKERS and part.stage + 1 < stages:
        return Action(part.stage + 1, ActionKind.SEND_GRAD, part.micro_batch)
    return None
