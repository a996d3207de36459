"""What passes may know about a run: taken from the mesh, the parameter table and the settings, equal on every rank."""

from monograph.axes import Axis, Group
from monograph.execute.base import StepSettings
from monograph.graph.facts import Facts
from monograph.parallel.groups import Groups
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
        reshard=settings.reshard,
        is_single_pass=settings.is_single_pass,
        device=groups.device.type,
        machine=settings.machine,
        for_artifact=groups.is_fake,
        overlap=settings.compile.expert_overlap,
    )
