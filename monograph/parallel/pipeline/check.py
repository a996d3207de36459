"""The static check of a joint schedule, before anything is started: all ranks' actions together. Loads without torch.

    check_schedule(schedule)     # or a ScheduleError that names a rank, its action and the partner

What is checked: each stage runs each micro-batch once, forward before backward; every send has its receive, in one
order per link; and a run of all lists together ends. A rank posts transfers without waiting, and an action waits for
its own inputs alone, so what ends here ends on real ranks.
"""

from collections import Counter
from collections.abc import Iterator

from monograph.errors import ConfigError
from monograph.parallel.pipeline.actions import RECEIVES, SENDS, Action, ActionKind
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.transfers import GRADIENT_MAKERS, Link, find_link, find_receive, find_send


class ScheduleError(ConfigError):
    """A schedule that would not end, or would compute something else."""


def check_schedule(schedule: Schedule) -> None:
    """Refuse a schedule at its first wrong action."""
    _check_places(schedule)
    listed = {part for row in schedule.actions for part in _all_parts(row)}
    for rank, row in enumerate(schedule.actions):
        _check_row(schedule, rank, row, listed)
    _check_complete(schedule)
    _check_links(schedule)
    _check_progress(schedule)


def _check_places(schedule: Schedule) -> None:
    """Every action is about a stage of its rank, and a micro-batch that exists."""
    if not schedule.stage_ranks or schedule.micro_batches < 1:
        raise ScheduleError(f"{schedule.name} has no stages or no micro-batches", why="there is nothing to run")
    for rank in range(schedule.ranks):
        if not schedule.stages_of(rank):
            raise ScheduleError(
                f"pipeline rank {rank} of {schedule.ranks} has no stage",
                why="every rank runs at least one stage",
                do="use fewer pipeline ranks, or more stages",
            )
    for rank, row in enumerate(schedule.actions):
        for part in (part for action in row for part in action.parts):
            if part.stage >= schedule.stages or schedule.stage_ranks[part.stage] != rank:
                owner = f"rank {schedule.stage_ranks[part.stage]}" if part.stage < schedule.stages else "no rank"
                raise _wrong(rank, part, f"stage {part.stage} belongs to {owner}")
            if part.micro_batch >= schedule.micro_batches:
                raise _wrong(rank, part, f"there are {schedule.micro_batches} micro-batches, counted from 0")
            if part.is_transfer:
                other = part.partner.stage
                if not 0 <= other < schedule.stages:
                    raise _wrong(rank, part, f"there is no stage {other} to exchange it with")
                if schedule.stage_ranks[other] == rank:
                    raise _wrong(rank, part, f"stage {other} is on the same rank, nothing travels")


def _check_row(schedule: Schedule, rank: int, row: tuple[Action, ...], listed: set[Action]) -> None:
    """One rank's list: nothing twice, and each action after what it needs of its own rank."""
    done: set[Action] = set()
    for part in (part for action in row for part in action.parts):
        if part in done:
            raise _wrong(rank, part, "it is listed twice")
        for needed, why in _find_local_needs(schedule, part, listed):
            if needed not in done:
                raise _wrong(rank, part, f"{why}, and {needed} of this rank does not come before it")
        done.add(part)


def _find_local_needs(schedule: Schedule, part: Action, listed: set[Action]) -> Iterator[tuple[Action, str]]:
    """What must come before an action in the list of its own rank, with the reason."""
    stage, number = part.stage, part.micro_batch
    if part.kind in SENDS:
        kinds = (ActionKind.FORWARD,) if part.kind is ActionKind.SEND_CARRY else GRADIENT_MAKERS
        makers = [Action(stage, kind, number) for kind in kinds]
        yield next((each for each in makers if each in listed), makers[0]), "a value is sent after it was made"
        return
    if part.kind in RECEIVES:
        return
    receive = find_receive(part, schedule.stage_ranks)
    if receive is not None:
        yield receive, "its input is posted for receiving first"
    if part.kind is ActionKind.WEIGHT_GRAD:
        yield Action(stage, ActionKind.INPUT_GRAD, number), "weight gradients follow the input gradient"
    elif part.kind is not ActionKind.FORWARD:
        yield Action(stage, ActionKind.FORWARD, number), "backward follows forward"


def _check_complete(schedule: Schedule) -> None:
    """Every stage runs every micro-batch forward once, and backward once: whole, or as two halves."""
    counts = Counter(part for row in schedule.actions for part in _all_parts(row))
    for stage, rank in enumerate(schedule.stage_ranks):
        for number in range(schedule.micro_batches):
            has = {kind: counts[Action(stage, kind, number)] for kind in ActionKind}
            if not has[ActionKind.FORWARD]:
                raise _missing(rank, Action(stage, ActionKind.FORWARD, number))
            whole, halves = has[ActionKind.BACKWARD], (has[ActionKind.INPUT_GRAD], has[ActionKind.WEIGHT_GRAD])
            if whole and any(halves):
                kind = ActionKind.INPUT_GRAD if halves[0] else ActionKind.WEIGHT_GRAD
                raise _wrong(rank, Action(stage, kind, number), "the whole backward is listed, too")
            if not whole and halves != (1, 1):
                kind = ActionKind.WEIGHT_GRAD if halves[0] else ActionKind.BACKWARD
                raise _missing(rank, Action(stage, kind, number))
    for rank, row in enumerate(schedule.actions):
        for part in _all_parts(row):
            send = find_send(part, schedule.stage_ranks)
            if send is not None and not counts[send]:
                raise _wrong(rank, part, f"rank {_partner(schedule, send)} waits for {send}, which is not listed")


def _check_links(schedule: Schedule) -> None:
    """A link delivers in the order of its sends: receives must be posted in that order."""
    sent: dict[Link, list[Action]] = {}
    received: dict[Link, list[Action]] = {}
    for row in schedule.actions:
        for action in row:
            if action.is_transfer:
                lists = sent if action.kind in SENDS else received
                lists.setdefault(find_link(action, schedule.stage_ranks), []).append(action)
    for link in sorted(sent.keys() | received.keys()):
        sends, receives = sent.get(link, []), received.get(link, [])
        for send, receive in zip(sends, receives, strict=False):
            if send.partner != receive:
                raise _wrong(
                    link[1],
                    receive,
                    f"the next that rank {link[0]} sends is {send}: receives are posted in the order of the sends",
                )
        if len(sends) > len(receives):
            raise _wrong(link[0], sends[len(receives)], f"rank {link[1]} has no {sends[len(receives)].partner}")
        if len(receives) > len(sends):
            raise _wrong(link[1], receives[len(sends)], f"rank {link[0]} has no {receives[len(sends)].partner}")


def _check_progress(schedule: Schedule) -> None:
    """Run all lists together; refuse when no rank can go on."""
    positions = [0] * schedule.ranks
    done: set[Action] = set()
    is_moving = True
    while is_moving:
        is_moving = False
        for rank, row in enumerate(schedule.actions):
            while positions[rank] < len(row) and find_missing_input(schedule, row[positions[rank]], done) is None:
                done |= set(row[positions[rank]].parts)
                positions[rank] += 1
                is_moving = True
    stuck = [rank for rank, row in enumerate(schedule.actions) if positions[rank] < len(row)]
    if not stuck:
        return
    waits = []
    for rank in stuck:
        action = schedule.actions[rank][positions[rank]]
        missing = find_missing_input(schedule, action, done)
        assert missing is not None
        waits.append((rank, action, missing, schedule.stage_ranks[missing.stage]))
    rank, action, missing, partner = waits[0]
    others = "; ".join(f"rank {r} in {a} for {m} of rank {p}" for r, a, m, p in waits[1:4])
    raise ScheduleError(
        f"pipeline rank {rank} waits in {action} for {missing} of rank {partner}, which never runs",
        why=f"a deadlock: the ranks wait for each other{'; ' + others if others else ''}",
        do="put an action before those that wait for it, on every rank",
    )


def find_missing_input(schedule: Schedule, action: Action, done: set[Action]) -> Action | None:
    """The first thing an action waits for that has not happened; None when it can run."""
    inside: set[Action] = set()
    for part in action.parts:
        for needed in _find_inputs(schedule, part):
            if needed not in done and needed not in inside:
                return needed
        inside.add(part)
    return None


def _find_inputs(schedule: Schedule, part: Action) -> Iterator[Action]:
    """What has to have happened anywhere before an action can run."""
    if part.is_transfer:
        return
    receive = find_receive(part, schedule.stage_ranks)
    if receive is not None:
        yield receive
        yield receive.partner
    elif part.kind is ActionKind.FORWARD and part.stage > 0:
        yield Action(part.stage - 1, ActionKind.FORWARD, part.micro_batch)
    elif part.kind in GRADIENT_MAKERS and part.stage + 1 < schedule.stages:
        yield Action(part.stage + 1, _find_gradient_kind(schedule, part), part.micro_batch)
    if part.kind is not ActionKind.FORWARD:
        before = ActionKind.INPUT_GRAD if part.kind is ActionKind.WEIGHT_GRAD else ActionKind.FORWARD
        yield Action(part.stage, before, part.micro_batch)


def _find_gradient_kind(schedule: Schedule, part: Action) -> ActionKind:
    """Which action of the next stage, on the same rank, makes the gradient that this one needs."""
    wanted = Action(part.stage + 1, ActionKind.INPUT_GRAD, part.micro_batch)
    row = schedule.actions[schedule.stage_ranks[part.stage]]
    return ActionKind.INPUT_GRAD if wanted in row else ActionKind.BACKWARD


def _all_parts(row: tuple[Action, ...]) -> Iterator[Action]:
    return (part for action in row for part in action.parts)


def _partner(schedule: Schedule, moved: Action) -> int:
    return schedule.stage_ranks[moved.partner.stage]


def _wrong(rank: int, action: Action, why: str) -> ScheduleError:
    return ScheduleError(f"pipeline rank {rank} cannot run {action}", why=why, do="correct the schedule's list")


def _missing(rank: int, action: Action) -> ScheduleError:
    why = "each stage runs each micro-batch forward and backward once"
    return ScheduleError(f"pipeline rank {rank} has no {action}", why=why, do="add it to the rank's list")
