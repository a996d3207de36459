"""A pipeline schedule: for every rank along pp, the list of actions it runs, in order. Loads without torch."""

from dataclasses import dataclass
from functools import cached_property

from monograph.parallel.pipeline.actions import Action, ActionKind

BUBBLE = "pipeline_bubble"
"""The metric of the measured bubble: the part of an update in which a rank computed nothing, by pipeline rank."""


@dataclass(frozen=True)
class Schedule:
    """All ranks' actions for the micro-batches of one update."""

    name: str
    stage_ranks: tuple[int, ...]
    """Stage -> the pp coordinate of the rank that runs it."""
    micro_batches: int
    actions: tuple[tuple[Action, ...], ...]
    """By pp coordinate."""

    @property
    def ranks(self) -> int:
        """Ranks along pp."""
        return len(self.actions)

    @property
    def stages(self) -> int:
        """Stages of all ranks together."""
        return len(self.stage_ranks)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that a rank runs, in order."""
        return tuple(stage for stage, owner in enumerate(self.stage_ranks) if owner == rank)

    @cached_property
    def is_split(self) -> bool:
        """Whether any backward is split into input and weight gradients."""
        return any(action.kind is ActionKind.INPUT_GRAD for row in self.actions for action in row)

    def text(self) -> str:
        """A line for every rank; the form of a schedule's file."""
        return "".join(",".join(map(str, row)) + "\n" for row in self.actions)


def place_in_loops(stages: int, ranks: int) -> tuple[int, ...]:
    """Stage -> rank, over and over: 0 1 0 1."""
    return tuple(stage % ranks for stage in range(stages))


def place_in_v(ranks: int) -> tuple[int, ...]:
    """Stage -> rank, there and back: 0 1 1 0."""
    return (*range(ranks), *reversed(range(ranks)))
