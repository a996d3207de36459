"""A network on one machine: one rank of a fake world whose collectives loop back, and take their time.

A collective of n bytes among r ranks occupies its group's link for `latency + n (r - 1)/r / bandwidth`. Compute goes on
meanwhile, and a wait really waits; so what overlaps in a schedule overlaps on the clock, without a cluster. What
arrives is what was sent: numbers are not those of a real run, sizes and times are.
"""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from monograph.axes import SAME_LINK, Group
from monograph.compat.ops import alias_process_group, fake_store, remove_group_alias, sleep_on_device
from monograph.parallel.groups import Groups
from monograph.parallel.mesh import Mesh


@dataclass
class Fabric:
    """The links, and what went over them."""

    bytes_per_second: float = float("inf")
    latency_seconds: float = 0.0
    groups: frozenset[str] = frozenset(group.value for group in Group)
    """Whose collectives take time; all others arrive at once."""
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Group -> how long its collectives took in all."""
    exposed_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Group -> how long compute waited for them (on a CPU; a GPU waits on its own)."""
    moved_bytes: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def find_seconds(self, sent: int) -> float:
        """How long a collective takes."""
        return self.latency_seconds + sent / self.bytes_per_second

    def forget(self) -> None:
        """Start counting afresh."""
        for counts in (self.seconds, self.exposed_seconds, self.moved_bytes):
            counts.clear()


class Arrival(dist.Work):
    """A collective on its way, on a CPU: it has arrived when its time has come."""

    def __init__(self, link: "Link", at: float) -> None:
        super().__init__()
        self.link, self.at = link, at

    def wait(self, *_timeout: Any) -> bool:
        left = self.at - time.perf_counter()
        if left > 0:
            self.link.fabric.exposed_seconds[self.link.link_name] += left
            time.sleep(left)
        return True


class StreamArrival(dist.Work):
    """A collective on its way, on a GPU: the current stream waits for it, the host does not."""

    def __init__(self, event: torch.cuda.Event) -> None:
        super().__init__()
        self.event = event

    def wait(self, *_timeout: Any) -> bool:
        torch.cuda.current_stream().wait_event(self.event)
        return True


class Link(dist.ProcessGroup):
    """The group of one logical name: its collectives come one after the other."""

    def __init__(self, name: str, rank: int, size: int, fabric: Fabric) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]
        self.link_name, self.ranks, self.fabric = name, size, fabric
        self.free_at = 0.0
        self.stream: torch.cuda.Stream | None = None

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """How torch calls the network."""
        return "emulated"

    def alltoall_base(self, output: Tensor, rows: Tensor, *_rest: Any) -> dist.Work:
        return self._send(rows.numel() * rows.element_size(), output, lambda: output.copy_(rows))

    def _allgather_base(self, output: Tensor, part: Tensor, *_rest: Any) -> dist.Work:
        parts = output.view(self.ranks, *part.shape)
        return self._send(output.numel() * output.element_size(), output, lambda: parts.copy_(part.expand_as(parts)))

    def allgather_into_tensor_coalesced(self, outputs: list[Tensor], parts: list[Tensor], *_rest: Any) -> dist.Work:
        """What torch asks for when it means one tensor."""
        (output,), (part,) = outputs, parts
        return self._allgather_base(output, part)

    def reduce_scatter_tensor_coalesced(self, outputs: list[Tensor], wholes: list[Tensor], *_rest: Any) -> dist.Work:
        """What torch asks for when it means one tensor."""
        (output,), (whole,) = outputs, wholes
        return self._reduce_scatter_base(output, whole)

    def _reduce_scatter_base(self, output: Tensor, whole: Tensor, *_rest: Any) -> dist.Work:
        part = whole.view(self.ranks, *output.shape)[0]
        return self._send(whole.numel() * whole.element_size(), output, lambda: output.copy_(part))

    def allreduce(self, tensors: Any, *_rest: Any) -> dist.Work:
        return self._send(2 * sum(each.numel() * each.element_size() for each in tensors), tensors[0], lambda: None)

    def barrier(self, *_rest: Any) -> dist.Work:
        return Arrival(self, 0.0)

    def _send(self, size: int, output: Tensor, copy: Any) -> dist.Work:
        sent = size * (self.ranks - 1) // self.ranks
        takes = self.fabric.find_seconds(sent) if self.ranks > 1 and self.link_name in self.fabric.groups else 0.0
        self.fabric.seconds[self.link_name] += takes
        self.fabric.moved_bytes[self.link_name] += sent
        if output.is_cuda:
            return self._send_on_stream(takes, output, copy)
        copy()
        self.free_at = max(time.perf_counter(), self.free_at) + takes
        return Arrival(self, self.free_at)

    def _send_on_stream(self, takes: float, output: Tensor, copy: Any) -> dist.Work:
        if self.stream is None:
            self.stream = torch.cuda.Stream()
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            copy()
            sleep_on_device(takes)
        output.record_stream(self.stream)
        event = torch.cuda.Event()
        event.record(self.stream)
        return StreamArrival(event)


@contextmanager
def emulated_groups(mesh: Mesh, device: torch.device, fabric: Fabric) -> Iterator[Groups]:
    """Rank 0 of a mesh, with real memory and a fake network."""
    dist.init_process_group("fake", store=fake_store(), rank=0, world_size=mesh.world_size)
    groups = Groups(mesh, 0, device, is_fake=True)
    groups.is_fake = False
    links = {group.value: Link(group.value, 0, mesh.group_size(group), fabric) for group in Group}
    for name in links:
        remove_group_alias(name)
        alias_process_group(name, links[SAME_LINK.get(name, name)])
    try:
        yield groups
    finally:
        groups.close()
        dist.destroy_process_group()
