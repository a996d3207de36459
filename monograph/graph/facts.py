"""What a pass may know besides the graph: the mesh, the machine, the order of the parameters. Equal on every rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch

from monograph.axes import Axis
from monograph.machine.device import Machine
from monograph.machine.table import CPU

SaveMode = Literal["none", "selective", "full", "min_cut", "budget"]


@dataclass(frozen=True, kw_only=True)
class SavePolicy:
    """Which activations forward saves for backward; the others are recomputed."""

    mode: SaveMode = "selective"
    """As in `activation_checkpoint.mode`, with auto decided."""
    save: tuple[str, ...] = ()
    """With full: values that are saved nevertheless, each as PATH::OP."""
    budget_gib: float = 0.0
    """With budget: the most that may cross from forward to backward, on one rank."""


@dataclass(frozen=True, kw_only=True)
class Chunking:
    """How modules run chunk by chunk, so that one chunk's all_to_all overlaps with another chunk's compute."""

    is_captured: bool
    """Whether modules were called once per chunk when the step was captured; otherwise a pass makes the chunks."""
    count: int
    """Chunks of a micro-batch."""
    dim: int
    """The dimension that is cut: 0 for the batch, 1 for the sequence."""
    is_summed_after_reduce: bool = False
    """Whether every chunk's gradient is reduced by itself, and the chunks are summed afterwards."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What passes may know about a run: mesh, parameters, dtypes, machine. The same on every rank, so that passes
    make the same decisions on every rank."""

    degrees: Mapping[Axis, int] = field(default_factory=dict)
    """Ranks along each axis."""
    group_sizes: Mapping[str, int] = field(default_factory=dict)
    """Ranks in each logical group: also the list of the groups that exist."""
    group_spans: Mapping[str, int] = field(default_factory=dict)
    """Ranks from a group's first to its last: whether it fits into one node of the machine."""
    slots: tuple[str, ...] = ()
    """The parameters in the order of the table: the order in which buckets are packed."""
    trained: tuple[str, ...] = ()
    """Those that are not frozen."""
    reshard: bool = True
    """Gathered parameters are freed after forward and re-gathered for backward."""
    is_single_pass: bool = False
    """Whether the optimizer updates in a single pass: it reads narrow gradients and writes cast copies of weights."""
    micro_batches: int = 1
    """Micro-batches of an update, on each data-parallel rank."""
    reduce_dtype: torch.dtype = torch.float32
    """In which gradients are summed over ranks."""
    device: str = "cpu"
    """Where the step will run; the passes themselves need no device."""
    machine: Machine = CPU
    """What costs are estimated for; that of rank 0 where ranks have different ones."""
    for_artifact: bool = False
    """Whether the graph is made for an artifact: compiled code must be complete, and as good as it gets."""
    activations: SavePolicy = field(default_factory=SavePolicy)
    """What forward saves for backward."""
    chunking: Chunking | None = None
    """How chosen modules run chunk by chunk; None where nothing does."""
    programs: int = 1
    """How many programs the graph becomes: a step is one; a pipeline stage runs as two, forward and backward, or as
    three where its schedule splits backward."""

    def degree(self, axis: Axis) -> int:
        """Ranks along an axis; an axis that is not mentioned has one."""
        return self.degrees.get(axis, 1)

    def slot_index(self, slot: str) -> int:
        """A parameter's index in the table."""
        return self.slots.index(slot)
