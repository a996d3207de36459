"""The communicators of a rank and what they cost. Loads without torch.

Names over the same ranks share a communicator where that delays nothing: its collectives run one after the other, in
the order in which all of its ranks start them. Every channel of every connection costs memory on the GPU, so those for
a few numbers have few channels.
"""

from collections.abc import Collection
from dataclasses import dataclass

from monograph.axes import POINT_TO_POINT, Group
from monograph.parallel.mesh import Mesh

SMALL = "small"
_LANES = {
    Group.FSDP_GATHER: "gather",
    Group.EFSDP_GATHER: "gather",
    Group.FSDP_SCATTER: "scatter",
    Group.EFSDP_SCATTER: "scatter",
    **dict.fromkeys((Group.EP_COUNTS, Group.PP, Group.SEQUENCE, Group.BATCH), SMALL),
    **dict.fromkeys((Group.SHARDS, Group.STAGE, Group.WORLD), SMALL),
}
"""Names that may share a communicator; every other one has its own. Gathers of experts and of the rest load the same
links, one after the other; what sums up losses, norms and counts is small."""
EXCHANGES = (Group.EP, Group.EP_COUNTS, Group.EP_DISPATCH)
"""Names with an all_to_all (and CP has one, where tokens are exchanged for heads)."""
_SMALL_CHANNELS, _LINK_CHANNELS = 2, 8
_CHANNELS, _PAIR_CHANNELS = 24, 32
"""NCCL's own choice between GPUs with NVLink, for collectives and for pairs."""
_CHANNEL_BYTES = 18 << 20
"""Of rings and trees, measured with 4 ranks on an H200 (NCCL 2.28); sends of pipelines need a sixth of that."""
_PAIR_CHANNEL_BYTES = 12 << 20
"""Of an exchange, both ends of a connection to one peer (NVIDIA/nccl#1685)."""
_FIXED_BYTES = 4 << 20


@dataclass(frozen=True)
class Communicator:
    """One of a rank's communicators."""

    groups: tuple[Group, ...]
    """The names that it serves."""
    members: tuple[int, ...]

    @property
    def name(self) -> str:
        """What reports call it."""
        return "+".join(group.value for group in self.groups)

    @property
    def most_channels(self) -> int:
        """How many channels it is limited to; 0 for NCCL's own choice."""
        if self.groups[0] in POINT_TO_POINT:
            return _LINK_CHANNELS
        return _SMALL_CHANNELS if _LANES.get(self.groups[0]) == SMALL else 0

    def count_bytes(self, *, per_node: int, is_ulysses: bool = False) -> int:
        """Estimate what NCCL keeps on the GPU for it: rings and trees, and a connection to every peer of the node."""
        limit = self.most_channels or _PAIR_CHANNELS
        peers = min(len(self.members), per_node) - 1
        if self.groups[0] in POINT_TO_POINT:
            return _FIXED_BYTES + 2 * limit * _CHANNEL_BYTES // 6  # from one neighbour, to the other
        has_exchange = any(group in EXCHANGES or (is_ulysses and group is Group.CP) for group in self.groups)
        size = _FIXED_BYTES + min(limit, _CHANNELS) * _CHANNEL_BYTES
        return size + (limit * peers * _PAIR_CHANNEL_BYTES if has_exchange else 0)


def plan_communicators(mesh: Mesh, rank: int, used: Collection[Group] = tuple(Group)) -> list[Communicator]:
    """A rank's communicators, in the order in which all ranks make them; a group of one rank needs none."""
    found: dict[tuple[str, tuple[int, ...]], list[Group]] = {}
    for group in Group:
        if group in used and mesh.group_size(group) > 1:
            found.setdefault((_LANES.get(group, group.value), mesh.members(group, rank)), []).append(group)
    return [Communicator(tuple(groups), members) for (_, members), groups in found.items()]
