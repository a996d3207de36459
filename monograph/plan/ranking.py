"""Which choice to capture next: the best guess, corrected by what captures of others have shown."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from monograph.parallel.mesh import Mesh
from monograph.plan.choice import PipelineChoice, RunChoice
from monograph.plan.rough import RoughEstimate

ALLOWANCE = 1.15
"""How far beyond the memory a guess may lie and still be captured, while no capture of its kind corrects it."""
MOST_OF_A_MESH = 2
"""Captures of one mesh, so that there are several to choose from."""


class Guessed(NamedTuple):
    """A choice with its schedules and the guess for the best of them."""

    choice: RunChoice
    pipelines: Sequence[PipelineChoice]
    guess: RoughEstimate


def find_kind(choice: RunChoice) -> Hashable:
    """What choices have in common whose guesses are wrong in the same way."""
    mesh = choice.mesh
    return choice.policy, choice.offload, choice.overlap, mesh.tp > 1, mesh.pp > 1, mesh.cp > 1


@dataclass
class Ranking:
    """All guesses, and what captures say of them."""

    guesses: Sequence[Guessed]
    memory_bytes: float
    is_accepted: Callable[[Guessed], bool]
    """Whether the configuration as a whole accepts a choice: too slow to ask for all."""
    kinds: list[Hashable] = field(init=False)
    taken: set[int] = field(default_factory=set)
    by_mesh: Counter[Mesh] = field(default_factory=Counter)
    fastest: dict[Mesh, float] = field(default_factory=dict)
    """Seconds of the fastest capture of a mesh that fits."""
    errors: dict[Hashable, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """Seconds and bytes that were measured by those guessed, by kind; None has all."""

    def __post_init__(self) -> None:
        self.kinds = [find_kind(each.choice) for each in self.guesses]

    def learn(self, guessed: Guessed, seconds: float, needed: float) -> None:
        """Take note of what a capture showed."""
        for kind in (find_kind(guessed.choice), None):
            self.errors[kind].append((seconds / guessed.guess.seconds, needed / guessed.guess.bytes))
        mesh = guessed.choice.mesh
        if needed <= self.memory_bytes:
            self.fastest[mesh] = min(seconds, self.fastest.get(mesh, math.inf))

    def take(self, count: int, *, is_smallest: bool = False, below: float = math.inf) -> list[Guessed]:
        """The next to capture, of different meshes: those that should fit and be fastest, in less than `below` seconds;
        or those that should need least, whatever their mesh."""
        found: list[Guessed] = []
        for *_, index in sorted(self._list_open(below, is_smallest=is_smallest)):
            each = self.guesses[index]
            mesh = each.choice.mesh
            if len(found) == count:
                break
            if not is_smallest and (self.by_mesh[mesh] >= MOST_OF_A_MESH or mesh in [one.choice.mesh for one in found]):
                continue
            self.taken.add(index)
            if self.is_accepted(each):
                self.by_mesh[mesh] += 1
                found.append(each)
        return found

    def _list_open(self, below: float, *, is_smallest: bool) -> list[tuple[bool, float, int]]:
        """Candidates for the next capture: (whether a capture of its mesh should be as fast, its rank, its index).

        Meshes that have no capture yet come first: a plan compares meshes, and the number of captures is limited.
        """
        corrections = {kind: self._find_correction(kind) for kind in set(self.kinds)}
        rooms = {kind: self.memory_bytes * (1.0 if kind in self.errors else ALLOWANCE) for kind in corrections}
        found = []
        for index, (each, kind) in enumerate(zip(self.guesses, self.kinds, strict=True)):
            slower, larger = corrections[kind]
            seconds, needed = each.guess.seconds * slower, each.guess.bytes * larger
            if index in self.taken or (not is_smallest and (needed > rooms[kind] or seconds >= below)):
                continue
            has_better = not is_smallest and seconds >= self.fastest.get(each.choice.mesh, math.inf)
            found.append((has_better, needed if is_smallest else seconds, index))
        return found

    def _find_correction(self, kind: Hashable) -> tuple[float, float]:
        """The mean error of guesses of a kind, or of all where none was captured."""
        found = self.errors.get(kind) or self.errors.get(None) or [(1.0, 1.0)]
        slower, larger = (math.exp(sum(map(math.log, column)) / len(found)) for column in zip(*found, strict=True))
        return slower, larger
