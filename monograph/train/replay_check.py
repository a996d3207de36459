"""`debug.replay_every`: finds hardware that computes wrong bits without saying so, and names the rank.

Every so many steps all ranks compute the same micro-batch twice, that of another data-parallel rank each time. The step
is deterministic, so two things must hold: a rank hands the same bytes to every collective both times, and ranks that
differ in their data alone hand over the same bytes. The first finds a fault that comes and goes, the second one that
stays. What was sent is compared in the order of the program: the first difference was made by the rank that sent it,
because everything it had received until then was equal. Of a pipeline, one stage after the other computes it, so that
there is such an order over all stages.
"""

import hashlib
import socket
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monograph.axes import Axis, Group
from monograph.errors import MonographError
from monograph.parallel.groups import Groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.observed_group import GRADIENTS, SendDigests, SentDigest, digest_bits
from monograph.train.step import Step

_MODEL_AXES = (Axis.PP, Axis.CP, Axis.TP, Axis.EP, Axis.ETP)
"""Ranks at the same place on all of these compute the same from the same micro-batch."""
_COMPARABLE = frozenset(
    {
        "",
        *(Group.FSDP_SCATTER, Group.EFSDP_SCATTER, Group.TP, Group.ETP, Group.CP),
        *(Group.EP, Group.EP_COUNTS, Group.EP_DISPATCH, Group.PP),
    }
)
"""Groups whose collectives begin with what a rank computed; others begin with its own shard, which nobody else has."""
_LOSS = "loss"
_HANDED_ON = {"carry": "activations", "carry_gradient": "gradient of activations"}
"""What pipeline stages send to each other, in words."""
Position = tuple[int, int]
"""A part of the step, and how many values were sent in it before."""


class CorruptionFound(MonographError):
    """A rank computed other bits than it should have; the parameters are as they were before this step."""


@dataclass(frozen=True)
class WrongRanks:
    """Who is to blame, and for which collective."""

    ranks: tuple[int, ...]
    """All of them, or, when `is_certain` is false, the ranks of which at least one is."""
    index: int
    """Which of the values sent in a part of the step was the first to differ."""
    sent: SentDigest
    is_certain: bool
    is_repeatable: bool
    """Whether the rank gives the same wrong bits each time."""


class ReplayCheck:
    """Computes one micro-batch twice every `every` steps; 0 never does."""

    def __init__(self, *, every: int, step: Step, groups: Groups) -> None:
        self.every, self.step, self.groups = every, step, groups

    def is_due(self, number: int) -> bool:
        """Whether the step with this number begins with a check."""
        return self.every > 0 and number % self.every == 0

    def run(self, number: int, batch: Mapping[str, Tensor]) -> None:
        """Raise CorruptionFound on every rank when any of them differs; leaves no gradient and no metric behind."""
        mesh = self.groups.mesh
        part = (number // self.every - 1) % mesh.data_parts
        source = next(rank for rank in range(mesh.world_size) if mesh.data_part(rank) == part)
        shared = self.groups.broadcast_object(dict(batch) if self.groups.rank == source else None, source=source)
        shared = shared or dict(batch)
        scalars = self.step.compute_scalars([shared])
        first, second = (self._compute(shared, scalars) for _ in range(2))
        if not self._is_clean(first, second):
            wrong = find_wrong_ranks(self.groups.all_gather_object((first, second)), mesh)
            raise self._explain(number, wrong)

    def _compute(self, batch: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> list[SentDigest]:
        digests = SendDigests()
        with self.groups.observed(digests):
            loss = self.step.accumulate_one(batch, scalars, digests)
        sent = digests.take()
        gradients = [value.grad for value in self.step.trained.values() if value.grad is not None]
        sent.append(SentDigest("", _LOSS, int(digest_bits([loss])), digests.part))
        sent.append(SentDigest("", GRADIENTS, int(digest_bits(gradients or [torch.zeros(1)])), digests.part))
        self.step.discard()
        return sent

    def _is_clean(self, first: list[SentDigest], second: list[SentDigest]) -> bool:
        """Whether no rank saw a difference; only hashes travel, however many collectives there are."""
        mesh, own = self.groups.mesh, hashlib.sha256(repr(pick_comparable(first)).encode()).hexdigest()
        told = self.groups.all_gather_object((first == second, own))
        classes = [{told[rank][1] for rank in ranks} for ranks in find_peers(mesh)]
        return all(is_same for is_same, _ in told) and all(len(hashes) == 1 for hashes in classes)

    def _explain(self, number: int, wrong: WrongRanks) -> CorruptionFound:
        hosts = self.groups.all_gather_object(socket.gethostname())
        names = " and ".join(f"rank {rank} ({hosts[rank]})" for rank in wrong.ranks)
        paths = self.step.find_collectives()
        if wrong.sent.name == _LOSS:
            where = "in the loss"
        elif wrong.sent.name == GRADIENTS:
            where = "in the gradients"
        elif wrong.sent.name in _HANDED_ON:
            where = f"in the {_HANDED_ON[wrong.sent.name]} that it sent"
        else:
            where = f"in what it sent to {wrong.sent.name} over {wrong.sent.group}"
            where += f", {paths[wrong.index]}" if wrong.index < len(paths) else ""
        part = self.step.describe_part(wrong.sent.part)
        where += f", in {part}" if part else ""
        kind = "the same wrong bits each time" if wrong.is_repeatable else "other bits when it computed them again"
        who = names if wrong.is_certain else f"one of {names}"
        return CorruptionFound(
            f"step {number}: {who} computed wrong bits, first {where}",
            why=f"debug.replay_every computed a micro-batch twice, and this rank had {kind}: a fault of its processor, "
            "memory or links, or an op that is not deterministic",
            do="take the machine out, and continue without it from a checkpoint saved before an earlier check; this "
            "step was not applied",
        )


def find_positions(sent: Sequence[SentDigest]) -> list[Position]:
    """Where in the program each value was sent: the same on all ranks that run a part together."""
    counts = Counter[int]()
    found = []
    for each in sent:
        found.append((each.part, counts[each.part]))
        counts[each.part] += 1
    return found


def pick_comparable(sent: Sequence[SentDigest]) -> list[tuple[Position, SentDigest]]:
    """What ranks with equal data must have in common: everything but their own shards and their gradients."""
    pairs = zip(find_positions(sent), sent, strict=True)
    return [(place, each) for place, each in pairs if each.group in _COMPARABLE and each.name != GRADIENTS]


def find_peers(mesh: Mesh) -> list[list[int]]:
    """Ranks that differ in their data alone, together."""
    classes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for rank in range(mesh.world_size):
        classes[tuple(mesh.coordinate(rank, axis) for axis in _MODEL_AXES)].append(rank)
    return list(classes.values())


def find_wrong_ranks(seen: Sequence[tuple[Sequence[SentDigest], Sequence[SentDigest]]], mesh: Mesh) -> WrongRanks:
    """Who sent the first value that differs, in the order of the program; both computations of every rank are given."""
    places = [dict(zip(find_positions(first), first, strict=True)) for first, _ in seen]
    unstable: dict[Position, list[int]] = defaultdict(list)
    for rank, (first, second) in enumerate(seen):
        pairs = zip(places[rank], first, second, strict=False)
        place = next((place for place, one, other in pairs if one != other), None)
        if place is not None:
            unstable[place].append(rank)
    unequal: dict[Position, list[list[int]]] = defaultdict(list)
    for peers in find_peers(mesh):
        rows = [pick_comparable(seen[rank][0]) for rank in peers]
        for column in zip(*rows, strict=False):
            if len({each for _, each in column}) > 1:
                unequal[column[0][0]].append(peers)
                break
    if unstable and (not unequal or min(unstable) <= min(unequal)):
        place = min(unstable)
        ranks = tuple(unstable[place])
        return WrongRanks(ranks, place[1], places[ranks[0]][place], is_certain=True, is_repeatable=False)
    place = min(unequal)
    peers = unequal[place][0]
    values = {rank: places[rank][place] for rank in peers}
    (common, count), *_ = Counter(values.values()).most_common()
    odd = tuple(rank for rank in peers if values[rank] != common)
    is_certain = count > len(peers) / 2
    if not is_certain:
        odd = tuple(peers)
    return WrongRanks(odd, place[1], values[odd[0]], is_certain=is_certain, is_repeatable=True)
