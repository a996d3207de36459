"""One step as numbers that can be compared: global tensors, however they were computed and sharded."""

from collections.abc import Mapping, Sequence
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
    """start, gradient, updated; or the name itself for loss and grad_norm."""

    def __str__(self) -> str:
        words = {"start": "its starting values", "gradient": "its gradient", "updated": "its updated values"}
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
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Sums over the global batch: the experts' load, auxiliary losses."""
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
    buffers: dict[str, Tensor]
    metrics: dict[str, Tensor]
    """Summed over all ranks already, and the same on all of them."""


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies in host memory."""
    return {name: value.detach().float().cpu().clone() for name, value in tensors.items()}


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
    for kind in ("outputs", "output_gradients"):
        for path in getattr(parts[0], kind):
            getattr(trace, kind)[path] = join_stream([getattr(part, kind)[path] for part in parts], mesh)
    for path in parts[0].choices:
        rows = parts[0].outputs["embedding"][0].shape[:2]
        split = [[choice.unflatten(0, rows) for choice in part.choices[path]] for part in parts]
        trace.choices[path] = join_stream(split, mesh)
    for field_name, kind in (("before", "start"), ("gradients", "gradient"), ("after", "updated")):
        for slot in table.trained if kind == "gradient" else table:
            named = {rank: getattr(part, field_name) for rank, part in enumerate(parts)}
            shards = {rank: held[slot.name] for rank, held in named.items() if slot.name in held}
            getattr(trace, field_name)[slot.name] = table.gather_full(slot, shards)
            if not _agree(slot, shards):
                trace.mismatches.append(RankMismatch(name=slot.name, kind=kind))
    for name, value in parts[0].buffers.items():
        trace.after[name] = value
        if not all(torch.equal(part.buffers[name], value) for part in parts):
            trace.mismatches.append(RankMismatch(name=name, kind="updated"))
    for name in ("loss", "grad_norm"):
        if len({getattr(part, name) for part in parts}) > 1:
            trace.mismatches.append(RankMismatch(name=name, kind=name))
    return trace


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
