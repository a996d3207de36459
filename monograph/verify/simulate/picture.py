"""A simulated mesh as data for a page: its axes, the collectives over each, and where a fault is."""

import re
from collections.abc import Mapping
from typing import Any

from monograph.axes import Group
from monograph.parallel.mesh import Mesh
from monograph.verify.simulate.run import MeshSimulation

DENSE = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
AXES = (*DENSE, "efsdp", "ep", "etp")
"""The dense axes, then those that experts have in the place of dp_shard, cp and tp."""
_DATA = ("dp_shard", "cp")
_SPANS: Mapping[Group, tuple[str, ...]] = {
    **dict.fromkeys((Group.FSDP_GATHER, Group.FSDP_SCATTER), _DATA),
    **dict.fromkeys((Group.EFSDP_GATHER, Group.EFSDP_SCATTER), ("efsdp",)),
    **dict.fromkeys((Group.TP, Group.TP_GRADS), ("tp",)),
    **dict.fromkeys((Group.EP, Group.EP_COUNTS, Group.EP_DISPATCH), ("ep",)),
    **dict.fromkeys((Group.PP, Group.PP_UP, Group.PP_DOWN), ("pp",)),
    Group.DP_REPLICATE: ("dp_replicate",),
    Group.ETP: ("etp",),
    Group.CP: ("cp",),
    Group.SEQUENCE: ("cp", "tp"),
    Group.BATCH: ("dp_replicate", *_DATA),
    Group.SHARDS: (*_DATA, "tp"),
    Group.STAGE: ("dp_replicate", *_DATA, "tp"),
    Group.WORLD: ("pp", "dp_replicate", *_DATA, "tp"),
}
UPDATE = (
    ("total loss", Group.BATCH),
    ("gradient norm", Group.SHARDS),
)
"""What an update sums outside of the graph."""


def draw_mesh(found: MeshSimulation) -> dict[str, Any]:
    """Axes with their degrees, a row for each collective over each group, and the fault."""
    groups = {axis for _, group in found.collectives for axis in _SPANS[Group(group)]}
    degrees = find_degrees(found.mesh, has_experts=not groups.isdisjoint(AXES[len(DENSE) :]))
    rows = [
        {"op": op.replace("_", " "), "group": group, "count": count, "axes": find_axes(Group(group), degrees)}
        for (op, group), count in sorted(found.collectives.items(), key=lambda item: (item[0][1], item[0][0]))
    ]
    rows += [
        {"op": what, "group": group.value, "count": 1, "axes": find_axes(group, degrees)}
        for what, group in UPDATE
        if find_axes(group, degrees)
    ]
    return {
        "ranks": found.mesh.world_size,
        "axes": [{"name": name, "degree": degree} for name, degree in degrees.items()],
        "rows": [row for row in rows if row["axes"]],
        "is_equal": found.is_equal,
        "fault": found.blame,
        "fault_axes": find_named_axes(found.blame, degrees),
        "compared": sum(graph.comparison.compared for graph in found.graphs) + len(found.update),
        "graphs": [graph.after for graph in found.graphs],
    }


def find_degrees(mesh: Mesh, *, has_experts: bool) -> dict[str, int]:
    """The axes along which the mesh has more than one rank."""
    names = AXES if has_experts else DENSE
    return {name: getattr(mesh, name) for name in names if getattr(mesh, name) > 1}


def find_axes(group: Group, degrees: Mapping[str, int]) -> list[str]:
    """The axes along which members of a group lie."""
    return [name for name in _SPANS[group] if name in degrees]


def find_named_axes(text: str, degrees: Mapping[str, int]) -> list[str]:
    """The axes that a fault is about, by their names or those of groups."""
    words = set(re.findall(r"\w+", text))
    spans = {name for group in Group if group.value in words for name in _SPANS[group]}
    return [name for name in degrees if name in words | spans]
