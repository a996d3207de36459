"""NCCL's communicators, made one by one before the first step.

NCCL makes a communicator when its first collective runs. Within a step that would be a wait inside of the library, for
a rank that may be missing, and memory that no one has counted.
"""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

from monograph.axes import POINT_TO_POINT, Group
from monograph.parallel.communicators import EXCHANGES, Communicator, plan_communicators
from monograph.parallel.deadline import deadline
from monograph.parallel.groups import Groups
from monograph.plurals import counted


@dataclass(frozen=True)
class Connected:
    """What a communicator took when it was made."""

    name: str
    ranks: int
    seconds: float
    bytes: int
    """Of the GPU's memory, with what other processes took of it meanwhile."""


def connect(groups: Groups, used: Collection[Group]) -> list[Connected]:
    """Make the communicators behind these names, in one order on all ranks; none where gloo serves, which connects
    without memory of the GPU. Links between pipeline ranks are made by who knows the schedule."""
    if not groups.is_nccl:
        return []
    is_ulysses = groups.mesh.cp_method == "ulysses"
    planned = plan_communicators(groups.mesh, groups.rank)
    chosen = [each for each in planned if each.groups[0] not in POINT_TO_POINT and not {*used}.isdisjoint(each.groups)]
    return [_connect_one(groups, each, used, is_ulysses=is_ulysses) for each in chosen]


def describe_connected(connected: Collection[Connected]) -> str:
    """The communicators of this rank in one line, the largest first."""
    largest = sorted(connected, key=lambda each: -each.bytes)[:3]
    named = ", ".join(f"{each.name} {each.bytes / 2**30:.2f} GiB" for each in largest)
    total, seconds = sum(each.bytes for each in connected), sum(each.seconds for each in connected)
    return (
        f"{counted(len(connected), 'communicator')}: {total / 2**30:.2f} GiB of GPU memory, {seconds:.1f} s ({named})"
    )


def _connect_one(groups: Groups, planned: Communicator, used: Collection[Group], *, is_ulysses: bool) -> Connected:
    native = groups.process_group(planned.groups[0])
    free, start = torch.cuda.mem_get_info(groups.device)[0], time.perf_counter()
    with deadline(f"the communicator {planned.name}", seconds=groups.timeout_seconds, rank=groups.rank):
        for use in _find_uses(planned, used, is_ulysses=is_ulysses):
            _USES[use](torch.zeros(len(planned.members), device=groups.device), native)
        torch.cuda.synchronize(groups.device)
    taken = max(0, free - torch.cuda.mem_get_info(groups.device)[0])
    return Connected(planned.name, len(planned.members), time.perf_counter() - start, taken)


def _find_uses(planned: Communicator, used: Collection[Group], *, is_ulysses: bool) -> list[str]:
    """Kinds of collectives: an exchange connects pairs, all others rings and trees."""
    served = [group for group in planned.groups if group in used]
    has_exchange = any(group in EXCHANGES or (is_ulysses and group is Group.CP) for group in served)
    return ["all_reduce", *(["all_to_all"] if has_exchange else [])]


_USES: Mapping[str, Callable[[torch.Tensor, dist.ProcessGroup], object]] = {
    "all_reduce": lambda box, group: dist.all_reduce(box, group=group),
    "all_to_all": lambda box, group: dist.all_to_all_single(torch.empty_like(box), box, group=group),
}
