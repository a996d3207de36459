"""How long a schedule takes and how much memory it needs, from costs per stage. Loads without torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from monograph.parallel.pipeline.actions import Action, ActionKind
from monograph.parallel.pipeline.check import find_missing_input
from monograph.parallel.pipeline.releases import find_releases
from monograph.parallel.pipeline.schedule import Schedule
from monograph.parallel.pipeline.transfers import find_receive, find_send


@dataclass(frozen=True, kw_only=True)
class StageCost:
    """What one micro-batch costs on one stage."""

    forward_seconds: float
    input_grad_seconds: float
    weight_grad_seconds: float
    transfer_seconds: float = 0.0
    """Of the carry to the next stage; its gradient comes back in the same time."""
    fixed_bytes: int = 0
    """Parameters, gradients and optimizer state."""
    saved_bytes: int = 0
    """What forward keeps for backward."""
    saved_for_weights_bytes: int = 0
    """What the input gradient keeps for the weight gradients."""
    work_bytes: int = 0
    """The most that an action needs besides what is kept."""
    sent_bytes: int = 0
    """Of the carry to the next stage; its gradient has as many."""

    def seconds(self, kind: ActionKind) -> float:
        """How long an action of this kind computes."""
        return {
            ActionKind.FORWARD: self.forward_seconds,
            ActionKind.INPUT_GRAD: self.input_grad_seconds,
            ActionKind.WEIGHT_GRAD: self.weight_grad_seconds,
            ActionKind.BACKWARD: self.input_grad_seconds + self.weight_grad_seconds,
        }.get(kind, 0.0)


@dataclass(frozen=True)
class ActionSpan:
    """One action in time."""

    action: Action
    start: float
    end: float


@dataclass(frozen=True)
class Simulation:
    """A run of all ranks on paper."""

    spans: tuple[tuple[ActionSpan, ...], ...]
    """By rank, without transfers."""
    seconds: float
    live_bytes: tuple[tuple[int, ...], ...]
    """By rank, the memory that each of `spans` needs."""
    peak_bytes: tuple[int, ...]
    """By rank."""
    peak_actions: tuple[str, ...]
    """The action during which each rank needs the most."""
    busy_seconds: tuple[float, ...] = field(default=())

    @property
    def bubble(self) -> float:
        """The part of all ranks' time in which they compute nothing."""
        total = self.seconds * len(self.spans)
        return 1 - sum(self.busy_seconds) / total if total else 0.0

    def bubble_of(self, rank: int) -> float:
        """The same for one rank."""
        return 1 - self.busy_seconds[rank] / self.seconds if self.seconds else 0.0


def simulate(schedule: Schedule, costs: Sequence[StageCost]) -> Simulation:
    """Run a checked schedule with these costs, one for every stage."""
    spans: list[list[ActionSpan]] = [[] for _ in range(schedule.ranks)]
    free = [0.0] * schedule.ranks
    positions = [0] * schedule.ranks
    ready: dict[Action, float] = {}
    while any(position < len(row) for position, row in zip(positions, schedule.actions, strict=True)):
        before = list(positions)
        for rank, row in enumerate(schedule.actions):
            while positions[rank] < len(row):
                action = row[positions[rank]]
                if find_missing_input(schedule, action, ready.keys()) is not None:  # type: ignore[arg-type]
                    break
                _run(schedule, costs, action, rank, free, ready, spans[rank])
                positions[rank] += 1
        assert positions != before, "the schedule was not checked"
    live = [count_live_bytes(schedule, costs, rank) for rank in range(schedule.ranks)]
    peaks = [max(counts, default=count_fixed_bytes(schedule, costs, rank)) for rank, counts in enumerate(live)]
    actions = [
        str(row[counts.index(peak)].action) if counts else ""
        for row, counts, peak in zip(spans, live, peaks, strict=True)
    ]
    busy = tuple(sum(span.end - span.start for span in row) for row in spans)
    return Simulation(
        spans=tuple(map(tuple, spans)),
        seconds=max(free),
        live_bytes=tuple(map(tuple, live)),
        peak_bytes=tuple(peaks),
        peak_actions=tuple(actions),
        busy_seconds=busy,
    )


def _run(
    schedule: Schedule,
    costs: Sequence[StageCost],
    action: Action,
    rank: int,
    free: list[float],
    ready: dict[Action, float],
    spans: list[ActionSpan],
) -> None:
    """Place one action; `ready` says when what each action yields can be used."""
    if action.is_transfer:
        link_stage = min(action.stage, action.partner.stage)
        is_send = action.kind in (ActionKind.SEND_CARRY, ActionKind.SEND_GRAD)
        ready[action] = free[rank] + (costs[link_stage].transfer_seconds if is_send else 0.0)
        return
    start = free[rank]
    for part in action.parts:
        receive = find_receive(part, schedule.stage_ranks)
        if receive is not None:
            start = max(start, ready[receive.partner])
    end = start
    for part in action.parts:
        end += costs[part.stage].seconds(part.kind)
        ready[part] = end
    free[rank] = end
    spans.append(ActionSpan(action, start, end))


def count_live_bytes(schedule: Schedule, costs: Sequence[StageCost], rank: int) -> list[int]:
    """The memory that a rank needs during each of its actions, transfers left out.

    Values are counted from when they are sent, or posted to be received, until they are known to have been read.
    """
    fixed, releases = count_fixed_bytes(schedule, costs, rank), find_releases(schedule, rank)
    held, found = 0, []
    for action in schedule.actions[rank]:
        if action.is_transfer:
            held += _sent_bytes(schedule, costs, action)
            continue
        needed = fixed
        for part in action.parts:
            cost = costs[part.stage]
            held -= sum(_sent_bytes(schedule, costs, send) for send in releases.get(part, ()))
            if part.kind is ActionKind.FORWARD:
                held += cost.saved_bytes
            needed = max(needed, fixed + held + cost.work_bytes)
            receive = find_receive(part, schedule.stage_ranks)
            if receive is not None:  # read; what backward needs of it is counted with what forward keeps
                held -= _sent_bytes(schedule, costs, receive)
            if part.kind is ActionKind.BACKWARD:
                held -= cost.saved_bytes
            elif part.kind is ActionKind.INPUT_GRAD:
                held += cost.saved_for_weights_bytes - cost.saved_bytes
            elif part.kind is ActionKind.WEIGHT_GRAD:
                held -= cost.saved_for_weights_bytes
        found.append(needed)
    return found


def _sent_bytes(schedule: Schedule, costs: Sequence[StageCost], moved: Action) -> int:
    """Bytes of a send or receive; 0 where both stages are on one rank."""
    stages = moved.stage, moved.partner.stage
    is_local = len({schedule.stage_ranks[stage] for stage in stages}) == 1
    return 0 if is_local else costs[min(stages)].sent_bytes


def count_fixed_bytes(schedule: Schedule, costs: Sequence[StageCost], rank: int) -> int:
    """Parameters, gradients and optimizer state of a rank's stages."""
    return sum(costs[stage].fixed_bytes for stage in schedule.stages_of(rank))


def count_transfers(schedule: Schedule) -> int:
    """Values that travel between ranks in one update."""
    parts = (part for row in schedule.actions for action in row for part in action.parts)
    return sum(find_send(part, schedule.stage_ranks) is not None for part in parts)
