"""What a pass may know besides the graph: the mesh, the machine, the order of the parameters. Equal on every rank."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from monograph.axes import Axis
from monograph.machine import CPU, Machine
from monograph.parallel.overlap_config import ExpertOverlapConfig


@dataclass(frozen=True, kw_only=True)
class Facts:
    """The same on every rank, so that passes decide alike everywhere."""

    degrees: Mapping[Axis, int] = field(default_factory=dict)
    """Ranks along each axis."""
    group_sizes: Mapping[str, int] = field(default_factory=dict)
    """Ranks in each logical group: also the list of the groups that exist."""
    group_spans: Mapping[str, int] = field(default_factory=dict)
    """Ranks from a group's first to its last: whether it fits into one node of the machine."""
    slots: tuple[str, ...] = ()
    """The parameters in the order of the table: the order in which buckets are packed."""
    reshard: bool = True
    """Gathered parameters are freed after forward and re-gathered for backward."""
    is_single_pass: bool = False
    """Whether the optimizer updates in a single pass: it reads narrow gradients and writes cast copies of weights."""
    reduce_dtype: torch.dtype = torch.float32
    """In which gradients are summed over ranks."""
    device: str = "cpu"
    """Where the step will run; the passes themselves need no device."""
    machine: Machine = CPU
    """What costs are estimated for; that of rank 0 where ranks have different ones."""
    for_artifact: bool = False
    """Whether the graph is made for an artifact: compiled code must be complete, and as good as it gets."""
    overlap: ExpertOverlapConfig = field(default_factory=ExpertOverlapConfig)
    """What is run chunk by chunk, so that experts' all_to_alls overlap with compute."""

    def degree(self, axis: Axis) -> int:
        """Ranks along an axis; an axis that is not mentioned has one."""
        return self.degrees.get(axis, 1)

    def place_of(self, slot: str) -> int:
        """A parameter's place in the table."""
        return self.slots.index(slot)
