"""What passes may know about a run: taken from the mesh, the parameter table and the settings, equal on every rank."""

from monograph.axes import Axis, Group
from monograph.execute.base import StepSettings
from monograph.graph.facts import Chunking, Facts
from monograph.parallel.groups import Groups
from monograph.parallel.overlap_config import ExpertOverlapConfig
from monograph.parallel.param_table import ParamTable


def make_facts(table: ParamTable, groups: Groups, settings: StepSettings) -> Facts:
    """The facts of a run on these groups."""
    mesh = groups.mesh
    return Facts(
        degrees={axis: mesh.degree(axis) for axis in Axis},
        group_sizes={group.value: mesh.group_size(group) for group in Group},
        group_spans={group.value: mesh.group_span(group) for group in Group},
        reduce_dtype=settings.reduce_dtype,
        slots=tuple(slot.name for slot in table),
        trained=tuple(slot.name for slot in table.trained),
        reshard=settings.reshard,
        is_single_pass=settings.is_single_pass,
        micro_batches=max(1, settings.micro_batches // mesh.data_parts),
        device=groups.device.type,
        machine=settings.machine,
        activations=settings.activations,
        for_artifact=groups.is_fake,
        chunking=describe_chunks(settings.compile.expert_overlap),
    )


def describe_chunks(overlap: ExpertOverlapConfig) -> Chunking | None:
    """How modules run chunk by chunk, if any do."""
    if not overlap.is_on:
        return None
    return Chunking(
        is_captured=overlap.strategy == "trace",
        count=overlap.num_chunks,
        dim=0 if overlap.chunk_dim == "batch" else 1,
        is_summed_after_reduce=overlap.grad_sum == "after_reduce",
    )
