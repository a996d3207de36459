"""One step as numbers that can be compared: global tensors, however they were computed and sharded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from monograph.axes import Axis
from monograph.execute.base import MeshStep, find_part
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import ParamTable, Slot


@dataclass(frozen=True, kw_only=True)
class RankMismatch:
    """Something that ranks should agree on and do not."""

    name: str
    kind: str
    """start, gradient, state, updated; or the name itself for loss and grad_norm."""

    def __str__(self) -> str:
        words = {"start": "its starting values", "gradient": "its gradient", "updated": "its updated values"}
        words["state"] = "its optimizer state"
        return f"{self.name}: ranks disagree on {words.get(self.kind, 'it')}"


@dataclass(kw_only=True)
class StepTrace:
    """Everything one update produced, as one device would see it."""

    loss: float = 0.0
    grad_norm: float = 0.0
    outputs: dict[str, Tensor] = field(default_factory=dict)
    """The stream [batch, sequence, dim] after each module, in forward order."""
    output_gradients: dict[str, Tensor] = field(default_factory=dict)
    """The loss's gradient with respect to each of them."""
    choices: dict[str, Tensor] = field(default_factory=dict)
    """Experts [batch, sequence, top_k] each router chose."""
    before: dict[str, Tensor] = field(default_factory=dict)
    """Parameters the step started from."""
    gradients: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    """Parameters and persistent buffers after the update."""
    state: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """The optimizer's state after the update, by its kind and the parameter."""
    max_norm: float = 0.0
    """What the update clipped the gradient norm to; 0 clips nothing."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Sums over the global batch: the experts' load, auxiliary losses; and the loss of an evaluation."""
    mismatches: list[RankMismatch] = field(default_factory=list)


@dataclass(kw_only=True)
class LocalTrace:
    """One rank's part of a StepTrace, as it is sent to rank 0."""

    loss: float
    grad_norm: float
    outputs: dict[str, list[Tensor]]
    output_gradients: dict[str, list[Tensor]]
    choices: dict[str, list[Tensor]]
    before: dict[str, Tensor]
    gradients: dict[str, Tensor]
    after: dict[str, Tensor]
    state: dict[str, dict[str, Tensor]]
    buffers_before: dict[str, Tensor]
    buffers_after: dict[str, Tensor]
    max_norm: float
    metrics: dict[str, Tensor]
    """Summed over all ranks already, and the same on all of them."""


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in host memory."""
    return {name: value.detach().float().cpu().clone() for name, value in tensors.items()}


def by_kind(state: Mapping[tuple[str, str], Tensor]) -> dict[str, dict[str, Tensor]]:
    """Copies of an optimizer's state in host memory."""
    found: dict[str, dict[str, Tensor]] = {}
    for (kind, name), value in state.items():
        found.setdefault(kind, {})[name] = value
    return {kind: snapshot(values) for kind, values in found.items()}


def gradients_of(step: MeshStep) -> dict[str, Tensor]:
    """This rank's gradients of trained parameters; a missing one counts as zero."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in step.trained.items()}


def gather_traces(local: LocalTrace, world_size: int, group: dist.ProcessGroup | None) -> list[LocalTrace] | None:
    """Every rank's part on rank 0, None elsewhere."""
    if group is None:
        return [local]
    parts: list[LocalTrace | None] | None = [None] * world_size if dist.get_rank() == 0 else None
    dist.gather_object(local, parts, dst=0, group=group)
    return [part for part in parts if part is not None] if parts else None


def assemble(parts: list[LocalTrace], table: ParamTable) -> StepTrace:
    """The global view of all ranks' parts; what should be equal on several ranks is checked on the way."""
    mesh = table.mesh
    trace = StepTrace(loss=parts[0].loss, grad_norm=parts[0].grad_norm, metrics=parts[0].metrics)
    trace.max_norm = parts[0].max_norm
    for kind in ("outputs", "output_gradients"):
        for path in getattr(parts[0], kind):
            getattr(trace, kind)[path] = join_stream([getattr(part, kind)[path] for part in parts], mesh)
    for path in parts[0].choices:
        rows = parts[0].outputs["embedding"][0].shape[:2]
        split = [[choice.unflatten(0, rows) for choice in part.choices[path]] for part in parts]
        trace.choices[path] = join_stream(split, mesh)
    for field_name, kind in (("before", "start"), ("gradients", "gradient"), ("after", "updated")):
        slots = table.trained if kind == "gradient" else table
        held = [getattr(part, field_name) for part in parts]
        setattr(trace, field_name, _join(slots, held, table, kind, trace.mismatches))
    for name in dict.fromkeys(each for part in parts for each in part.state):
        held = [part.state.get(name, {}) for part in parts]
        trace.state[name] = _join(table.trained, held, table, "state", trace.mismatches)
    for field_name, kind in (("before", "start"), ("after", "updated")):
        for name, value in getattr(parts[0], f"buffers_{field_name}").items():
            getattr(trace, field_name)[name] = value
            if not all(torch.equal(getattr(part, f"buffers_{field_name}")[name], value) for part in parts):
                trace.mismatches.append(RankMismatch(name=name, kind=kind))
    for name in ("loss", "grad_norm"):
        if len({getattr(part, name) for part in parts}) > 1:
            trace.mismatches.append(RankMismatch(name=name, kind=name))
    return trace


def _join(
    slots: Iterable[Slot],
    held: Sequence[Mapping[str, Tensor]],
    table: ParamTable,
    kind: str,
    mismatches: list[RankMismatch],
) -> dict[str, Tensor]:
    """Whole tensors from what every rank holds of them; ranks that disagree are noted."""
    whole = {}
    for slot in slots:
        shards = {rank: named[slot.name] for rank, named in enumerate(held) if slot.name in named}
        if not shards:
            continue  # the reference says what it has of it
        whole[slot.name] = table.gather_full(slot, shards)
        if not _agree(slot, shards):
            mismatches.append(RankMismatch(name=slot.name, kind=kind))
    return whole


def join_stream(parts: list[list[Tensor]], mesh: Mesh) -> Tensor:
    """[rank][micro-batch] pieces -> the whole batch: sequence slices by tp, parts by cp, micro-batches, data parts."""
    by_part: dict[int, dict[tuple[int, int], list[Tensor]]] = {}
    for rank, pieces in enumerate(parts):
        place = mesh.coordinate(rank, Axis.CP), mesh.coordinate(rank, Axis.TP)
        by_part.setdefault(mesh.data_part(rank), {})[place] = pieces
    joined = []
    for part in sorted(by_part):
        of_cp = [[by_part[part][cp, tp] for tp in range(mesh.tp)] for cp in range(mesh.cp)]
        slices = [[torch.cat(micro, dim=1) for micro in zip(*of_tp, strict=True)] for of_tp in of_cp]
        joined += [join_parts(micro, mesh) for micro in zip(*slices, strict=True)]
    return torch.cat(joined)


def join_parts(values: Sequence[Tensor], mesh: Mesh) -> Tensor:
    """Whole sequences from the parts of all context-parallel ranks."""
    first = values[0]
    whole = first.new_empty((first.shape[0], first.shape[1] * mesh.cp, *first.shape[2:]))
    for index, value in enumerate(values):
        find_part(mesh, index).put(value, whole, dim=1)
    return whole


def _agree(slot: Slot, shards: Mapping[int, Tensor]) -> bool:
    """Whether all ranks that store the same part store the same values."""
    seen: dict[tuple[int, ...], Tensor] = {}
    for rank, shard in shards.items():
        part = slot.valid_part(shard, rank)
        index = tuple(extent.start for extent in slot.extents(rank))
        if part.numel() and not torch.equal(seen.setdefault(index, part), part):
            return False
    return True
