"""Sends and receives of a schedule that lists computation only. Loads without torch.

A rank posts its sends right after the action that made the value. The other rank posts its receives in the order of
the sends, as a link delivers them, and one action ahead of the one that needs them, so that a value can travel while
the rank computes. Posting never waits; only computing does.
"""

from collections.abc import Sequence
from dataclasses import replace

from monograph.parallel.pipeline.actions import Action, ActionKind
from monograph.parallel.pipeline.schedule import Schedule

GRADIENT_MAKERS = (ActionKind.BACKWARD, ActionKind.INPUT_GRAD)
Link = tuple[int, int]
"""Sending and receiving rank."""


def find_send(part: Action, stage_ranks: Sequence[int]) -> Action | None:
    """The send that follows an action; None where its value stays on the rank, or goes nowhere."""
    if part.kind is ActionKind.FORWARD and part.stage + 1 < len(stage_ranks):
        send = Action(part.stage, ActionKind.SEND_CARRY, part.micro_batch)
    elif part.kind in GRADIENT_MAKERS and part.stage > 0:
        send = Action(part.stage, ActionKind.SEND_GRAD, part.micro_batch)
    else:
        return None
    return None if stage_ranks[send.stage] == stage_ranks[send.partner.stage] else send


def find_receive(part: Action, stage_ranks: Sequence[int]) -> Action | None:
    """The receive that an action needs; None where its input is made on the rank, or comes from the batch."""
    if part.kind is ActionKind.FORWARD and part.stage > 0:
        receive = Action(part.stage, ActionKind.RECV_CARRY, part.micro_batch)
    elif part.kind in GRADIENT_MAKERS and part.stage + 1 < len(stage_ranks):
        receive = Action(part.stage, ActionKind.RECV_GRAD, part.micro_batch)
    else:
        return None
    return None if stage_ranks[receive.stage] == stage_ranks[receive.partner.stage] else receive


def find_link(moved: Action, stage_ranks: Sequence[int]) -> Link:
    """The ranks a value goes from and to; stages must exist."""
    own, other = stage_ranks[moved.stage], stage_ranks[moved.partner.stage]
    is_send = moved.kind in (ActionKind.SEND_CARRY, ActionKind.SEND_GRAD)
    return (own, other) if is_send else (other, own)


def find_links(schedule: Schedule) -> set[Link]:
    """All links that a schedule uses."""
    return {find_link(action, schedule.stage_ranks) for row in schedule.actions for action in row if action.is_transfer}


def has_transfers(schedule: Schedule) -> bool:
    """whether a schedule lists sends and receives itself."""
    return any(action.is_transfer for row in schedule.actions for action in row)


def with_transfers(schedule: Schedule, *, ahead: int = 1) -> Schedule:
    """The schedule with its transfers; `ahead` says how many actions early receives are posted."""
    placed = schedule.stage_ranks
    expected: dict[Link, list[Action]] = {}
    for row in schedule.actions:
        for send in (find_send(part, placed) for action in row for part in action.parts):
            if send is not None:
                expected.setdefault(find_link(send, placed), []).append(send.partner)
    rows = tuple(_fill(row, placed, expected, ahead) for row in schedule.actions)
    return replace(schedule, actions=rows)


def _fill(
    row: Sequence[Action], placed: Sequence[int], expected: dict[Link, list[Action]], ahead: int
) -> tuple[Action, ...]:
    """One rank's list. A receive is followed by no other of its link that was sent before it."""
    filled: list[Action] = []
    posted: set[Action] = set()
    for index, action in enumerate(row):
        near = [part for each in row[index : index + 1 + ahead] for part in each.parts]
        for part in near:
            receive = find_receive(part, placed)
            if receive is None or receive in posted:
                continue
            queue = expected.get(find_link(receive, placed), [])
            # What is never sent is left to the checker, which names the action that waits for it.
            count = queue.index(receive) + 1 if receive in queue else 0
            filled += queue[:count]
            posted |= set(queue[:count])
            del queue[:count]
        filled.append(action)
        sends = (find_send(part, placed) for part in action.parts)
        filled += [send for send in sends if send is not None]
    return tuple(filled)
