"""Slots that several stages use, such as a tied embedding: each stage sums its own gradients over an update.

Once an update the sums are exchanged between the ranks that have the slot, and added in the order of the stages. So
every rank has the same total, whatever the schedule, and the slot's copies stay equal.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monograph.capture.stage import CarrySpec
from monograph.execute.base import sum_in_order
from monograph.execute.gradients import Gradients, add_to_sum, allow_any_gradient, find_sum_dtype
from monograph.execute.pipeline.links import Links
from monograph.parallel.param_table import ParamTable, Slot
from monograph.parallel.pipeline.stages import StagePlan
from monograph.parallel.pipeline.transfers import Link


@dataclass(frozen=True)
class TiedSlot:
    """A slot and the stages that use it, in order."""

    slot: Slot
    stages: tuple[int, ...]


def find_tied(table: ParamTable, plan: StagePlan) -> list[TiedSlot]:
    """The trained slots of more than one stage, in the order of the table."""
    holders = [table.of_units(units) for units in plan.stages]
    found = []
    for slot in table.trained:
        stages = tuple(number for number, held in enumerate(holders) if slot in held.slots)
        if len(stages) > 1:
            found.append(TiedSlot(slot, stages))
    return found


def find_tied_links(tied: Sequence[TiedSlot], stage_ranks: Sequence[int]) -> set[Link]:
    """Who sends gradients of tied slots to whom."""
    holders = [{stage_ranks[stage] for stage in each.stages} for each in tied]
    return {(one, other) for ranks in holders for one in ranks for other in ranks if one != other}


class StageGradients(Gradients):
    """Adds a stage's gradients to the shards' `.grad`; those of tied slots are added up apart."""

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        tied: Sequence[TiedSlot],
        *,
        reduce_dtype: torch.dtype,
        keeps_dtype: bool,
    ) -> None:
        names = {each.slot.name for each in tied}
        alone = {name: value for name, value in parameters.items() if name not in names}
        super().__init__(alone, reduce_dtype=reduce_dtype, keeps_dtype=keeps_dtype)
        self.apart = {name: TiedPart(value, reduce_dtype) for name, value in parameters.items() if name in names}

    def add(self, name: str, gradient: Tensor) -> None:
        if name in self.apart:
            self.apart[name].add(gradient)
        else:
            super().add(name, gradient)

    @property
    def is_empty(self) -> bool:
        return super().is_empty and all(part.value is None for part in self.apart.values())

    def list_all(self) -> list[Tensor]:
        """The sums so far, those of tied slots last."""
        apart = [part.value for part in self.apart.values() if part.value is not None]
        return [*self.taken().values(), *apart]

    def take_all(self) -> dict[str, Tensor]:
        """The sums of all slots; the next update begins without any."""
        found = self.taken() | {name: part.value for name, part in self.apart.items() if part.value is not None}
        for parameter in self.parameters.values():
            parameter.grad = None
        for part in self.apart.values():
            part.value = None
        return found

    def restore_all(self, buffers: Mapping[str, Tensor]) -> None:
        """Use these sums again: something else than `add` has filled them."""
        self.restore({name: value for name, value in buffers.items() if name not in self.apart})
        for name, part in self.apart.items():
            part.value = buffers.get(name)


class TiedPart:
    """One stage's share of the gradient of a tied slot."""

    def __init__(self, parameter: Tensor, reduce_dtype: torch.dtype) -> None:
        self.parameter, self.dtype = parameter, find_sum_dtype(parameter, reduce_dtype)
        self.value: Tensor | None = None
        allow_any_gradient(parameter, self.dtype)

    def add(self, gradient: Tensor) -> None:
        """Add one micro-batch's gradient."""
        gradient = gradient.to(self.parameter.dtype)
        self.value = gradient.clone() if self.value is None else add_to_sum(self.value, gradient, self.dtype)

    def take(self) -> Tensor:
        """The sum since the last call, as the other stages add it."""
        value, self.value = self.value, None
        return torch.zeros_like(self.parameter, dtype=self.dtype) if value is None else value.to(self.dtype)


def add_tied(
    tied: Sequence[TiedSlot], parts: Mapping[int, Mapping[str, TiedPart]], stage_ranks: Sequence[int], links: Links
) -> None:
    """Exchange and add the shares of all tied slots; `parts` has those of this rank's stages."""
    pending = []
    for each in tied:
        name = each.slot.name
        own = {stage: parts[stage][name].take() for stage in each.stages if stage in parts}
        if not own:
            continue
        part = next(parts[stage][name] for stage in own)
        parameter = part.parameter
        peers = sorted({stage_ranks[stage] for stage in each.stages} - {links.own})
        what = f"the gradient of {name}"
        sends = [links.send(what, peer, _named(own)) for peer in peers]
        form = CarrySpec(tuple(parameter.shape), part.dtype, parameter.stride())
        receives = [
            links.receive(what, peer, {_key(s): form for s in each.stages if stage_ranks[s] == peer}) for peer in peers
        ]
        pending.append((each, parameter, own, sends, receives))
    for each, parameter, own, sends, receives in pending:
        shares = _named(own)
        for receive in receives:
            shares |= links.wait(receive, "the sum of gradients of tied parameters")
        ordered = [shares[_key(stage)] for stage in each.stages]
        total = sum_in_order(ordered)
        for send in sends:
            links.wait(send, "the sum of gradients of tied parameters")
        before = parameter.grad
        parameter.grad = total if before is None else before + total


def _key(stage: int) -> str:
    return f"{stage:06d}"


def _named(own: Mapping[int, Tensor]) -> dict[str, Tensor]:
    return {_key(stage): value for stage, value in own.items()}
