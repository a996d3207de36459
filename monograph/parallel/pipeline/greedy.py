"""A schedule with split backwards, built by simulating all ranks: whoever is free starts the best action that is ready.

Every action takes one unit of time and transfers take none. A list that was run once can be run, so what is built
here has no deadlock; the checker looks at it all the same. Loads without torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from monograph.parallel.pipeline.actions import Action, forward, input_grad, weight_grad

Rank = int
Stage = int


@dataclass
class _State:
    """How far every stage has come, in micro-batches; those of one stage run in ascending order."""

    stage_ranks: Sequence[int]
    micro_batches: int
    forwards: list[int] = field(default_factory=list)
    inputs: list[int] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)
    finished: dict[Action, int] = field(default_factory=dict)
    """When each action ends."""

    def __post_init__(self) -> None:
        count = len(self.stage_ranks)
        self.forwards, self.inputs, self.weights = [0] * count, [0] * count, [0] * count

    def is_done(self, action: Action, time: int) -> bool:
        return self.finished.get(action, time + 1) <= time

    def can_forward(self, stage: Stage, time: int) -> bool:
        number = self.forwards[stage]
        return number < self.micro_batches and (stage == 0 or self.is_done(forward(stage - 1, number), time))

    def can_input_grad(self, stage: Stage, time: int) -> bool:
        number = self.inputs[stage]
        if number >= self.forwards[stage]:
            return False
        last = stage + 1 == len(self.stage_ranks)
        return last or self.is_done(input_grad(stage + 1, number), time)

    def can_weight_grad(self, stage: Stage) -> bool:
        return self.weights[stage] < self.inputs[stage]

    def held(self, rank: Rank) -> int:
        """Micro-batches whose saved values a rank holds, over its stages."""
        own = [stage for stage, owner in enumerate(self.stage_ranks) if owner == rank]
        return sum(self.forwards[stage] - self.weights[stage] for stage in own)


def build_split_schedule(
    stage_ranks: Sequence[int],
    micro_batches: int,
    *,
    ranks: int,
    limit: int,
) -> tuple[tuple[Action, ...], ...]:
    """The lists of all ranks; a rank holds the saved values of at most `limit` micro-batches, counted per stage.

    Input gradients come first, because the ranks before wait for them; then forwards, those of later stages first;
    weight gradients fill the rest.
    """
    state = _State(stage_ranks, micro_batches)
    rows: list[list[Action]] = [[] for _ in range(ranks)]
    left = 3 * len(stage_ranks) * micro_batches
    time = 0
    while left:
        chosen = [_choose(state, rank, time, limit) for rank in range(ranks)]
        for rank, action in enumerate(chosen):
            if action is not None:
                rows[rank].append(action)
                state.finished[action] = time + 1
                _count(state, action)
                left -= 1
        time += 1
    return tuple(map(tuple, rows))


def _count(state: _State, action: Action) -> None:
    kinds = {"F": state.forwards, "I": state.inputs, "W": state.weights}
    kinds[action.kind.value][action.stage] += 1


def _choose(state: _State, rank: Rank, time: int, limit: int) -> Action | None:
    """What a free rank does next."""
    own = [stage for stage, owner in enumerate(state.stage_ranks) if owner == rank]
    for stage in own:
        if state.can_input_grad(stage, time):
            return input_grad(stage, state.inputs[stage])
    # The last room is kept for the rank's last stage: a forward of an earlier one could not be finished without it.
    for stage in reversed(own):
        room = limit - state.held(rank) - sum(other > stage for other in own)
        if room > 0 and state.can_forward(stage, time):
            return forward(stage, state.forwards[stage])
    for stage in own:
        if state.can_weight_grad(stage):
            return weight_grad(stage, state.weights[stage])
    return None
