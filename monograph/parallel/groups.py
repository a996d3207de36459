"""Process groups under logical names: the same name on every rank, each resolving to that rank's own group.

Graphs and eager code address groups by name only, which is what makes the step's text equal on all ranks. Groups are
created axis by axis in one fixed order, so that all ranks agree on the order of every handshake.
"""

import atexit
import functools
import gc
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from monograph.axes import COORDS, POINT_TO_POINT, Group
from monograph.compat.ops import (
    abort_process_groups,
    alias_process_group,
    fake_store,
    make_nccl_options,
    remove_group_alias,
)
from monograph.errors import ConfigError
from monograph.log import get_log
from monograph.parallel.communicators import Communicator, plan_communicators
from monograph.parallel.error_file import record_failure
from monograph.parallel.flight import set_up_flight, write_flight
from monograph.parallel.host_staged import HostStagedGroup
from monograph.parallel.lone_group import LoneGroup
from monograph.parallel.meeting import join, make_room_for_sockets
from monograph.parallel.mesh import Mesh
from monograph.parallel.observed_group import CollectiveObserver, ObservedGroup
from monograph.parallel.ordered_sums import MIN_RANKS, OrderedSums
from monograph.parallel.rank_devices import agree_on_backend

log = get_log("groups")
FILES_SECONDS = 1800.0
"""Ranks wait for each other's files so long: a shared disk can be slower than any collective may be."""


class Groups:
    """This rank's groups on a mesh, and its place in it.

    It alone owns them: whoever else holds a process group longer than a call holds it weakly, or lets go in `at_close`.
    A group ends with its last reference, and so do gloo's threads. One that outlives the interpreter is unsafe: a
    thread that frees the tensor of its last collective then needs the interpreter, and aborts the whole process.
    """

    def __init__(
        self,
        mesh: Mesh,
        rank: int,
        device: torch.device,
        *,
        is_fake: bool = False,
        timeout_seconds: float = 300.0,
        files_timeout_seconds: float = FILES_SECONDS,
    ) -> None:
        self.mesh = mesh
        self.timeout_seconds = timeout_seconds
        self._files_limit = timedelta(seconds=files_timeout_seconds)
        self._limit = timedelta(seconds=timeout_seconds)  # a new group does not inherit the default group's
        self.rank = rank
        self.device = device
        self.is_fake = is_fake
        self.has_peers = mesh.world_size > 1 and not is_fake
        self._is_training = False
        """Whether steps have begun; until then ranks wait for each other as long as for files."""
        self.is_nccl = not is_fake and "nccl" in str(dist.get_backend_config())
        self.copies_through_host = self.has_peers and device.type == "cuda" and not self.is_nccl
        """Whether gloo serves tensors of a GPU, as for ranks that share one."""
        self._native: dict[Group, dist.ProcessGroup] = {}
        self._serving: dict[Group, dist.ProcessGroup] = {}
        self._on_host: dict[str, dist.ProcessGroup] = {}
        self._closing: list[Callable[[], None]] = []
        self.observer: CollectiveObserver | None = None
        """Who sees what this rank sends and waits for, now."""
        for group in Group:
            if is_fake or mesh.group_size(group) == 1:
                self._serving[group] = self.process_group(group) if is_fake else LoneGroup()
        for planned in [] if is_fake else plan_communicators(mesh, rank):
            native = self._make_group(planned)
            is_plain = self.is_nccl or planned.groups[0] in POINT_TO_POINT
            serving = native if is_plain else _serve_with_gloo(native, device)
            self._native |= dict.fromkeys(planned.groups, native)
            self._serving |= dict.fromkeys(planned.groups, serving)
        for group, serving in self._serving.items():
            alias_process_group(group.value, serving)  # torch's registry does not own what it names

    def process_group(self, group: Group) -> dist.ProcessGroup:
        """The torch object behind a name, for libraries that want one.

        A group of one rank that `LoneGroup` serves is created when it is asked for, which concerns no other rank: gloo
        takes 10 ms to end each group, NCCL keeps up to 512 MiB for one, and most groups of a small run have one rank.
        """
        if group not in self._native:
            self._native[group] = self._make_group(Communicator((group,), self.mesh.members(group, self.rank)))
        return self._native[group]

    def _make_group(self, planned: Communicator) -> dist.ProcessGroup:
        """Create one of this rank's groups. The backend is named: a new group inherits all of the default group's."""
        limits: dict[str, Any] = {}
        if self.is_nccl:
            options = make_nccl_options(planned.most_channels, self._limit)
            limits = {"backend": "nccl", "pg_options": options}
        return dist.new_group(
            list(planned.members),
            timeout=self._limit,
            use_local_synchronization=True,
            group_desc=planned.name,
            **limits,
        )

    def start_training(self) -> None:
        """Wait until every rank is ready for its first step; from then on waiting ends after `timeout_seconds`."""
        self.barrier()
        self._is_training = True
        self.barrier()  # connects the group that agreement uses from now on

    @contextmanager
    def observed(self, observer: CollectiveObserver) -> Iterator[None]:
        """Let an observer see every collective that this rank starts by a logical name, and waits for other stages."""
        observed = {
            group: ObservedGroup(group.value, serving, observer)
            for group, serving in self._serving.items()
            if group not in POINT_TO_POINT
        }
        self.observer = observer
        try:
            for group, stand_in in observed.items():
                remove_group_alias(group.value)
                alias_process_group(group.value, stand_in)
            yield
        finally:
            self.observer = None
            for group in observed:
                remove_group_alias(group.value)
                alias_process_group(group.value, self._serving[group])

    @contextmanager
    def alone(self) -> Iterator["Groups"]:
        """Groups of a mesh of one under the same names: what rank 0 computes inside, it computes by itself."""
        assert self.rank == 0, "a mesh of one has rank 0"
        for group in self._serving:
            remove_group_alias(group.value)
        try:
            alone = Groups(Mesh(), 0, self.device, timeout_seconds=self.timeout_seconds)
            try:
                yield alone
            finally:
                alone.close()
        finally:
            for group, serving in self._serving.items():
                alias_process_group(group.value, serving)

    def checkpoint_group(self) -> dist.ProcessGroup | None:
        """A gloo group of all ranks for checkpoints and for checks before training; None when this rank is alone.

        While training runs, only checkpoints use it: a background save issues collectives on it from its own thread.
        """
        return self._host_group("files", self._files_limit)

    def _host_group(self, purpose: str, limit: timedelta | None = None) -> dist.ProcessGroup | None:
        if not self.has_peers:
            return None
        if purpose not in self._on_host:
            self._on_host[purpose] = dist.new_group(backend="gloo", timeout=limit or self._limit)
        return self._on_host[purpose]

    def _agreement(self) -> dist.ProcessGroup | None:
        """The group for what the hosts decide together; before the first step that for files, with its limit."""
        return self._host_group("agreement") if self._is_training else self.checkpoint_group()

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.has_peers:
            dist.barrier(self._agreement())

    def any_rank(self, flag: bool) -> bool:
        """Whether the flag is set on any rank: how all ranks agree to stop at the same step."""
        if not self.has_peers:
            return flag
        box = torch.tensor(int(flag))
        dist.all_reduce(box, dist.ReduceOp.MAX, group=self._agreement())
        return bool(box)

    def any_rank_of_stage(self, flag: bool) -> bool:
        """The same among the ranks that have the same pipeline coordinate; other stages need not ask."""
        if not self.has_peers or self.mesh.group_size(Group.STAGE) == 1:
            return flag
        box = torch.tensor([int(flag)], device=self.device)
        dist.all_reduce(box, dist.ReduceOp.MAX, group=self.process_group(Group.STAGE))
        return bool(box)

    def broadcast_object(self, value: Any, *, source: int = 0) -> Any:
        """One rank's value, on every rank."""
        if not self.has_peers:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=source, group=self._agreement())
        return box[0]

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's value, on every rank, by rank."""
        if not self.has_peers:
            return [value]
        values: list[Any] = [None] * self.mesh.world_size
        dist.all_gather_object(values, value, group=self._agreement())
        return values

    def check_same(self, what: str, value: str, *, text: Callable[[], str] | None = None) -> None:
        """Raise an error on every rank when ranks disagree; otherwise they would hang later.

        Only values travel, unless they differ: then the texts do, and the error shows the first line that differs.
        """
        self._check_same(what, value, text, first_of=lambda _: 0)

    def check_same_on_stage(self, what: str, value: str, *, text: Callable[[], str] | None = None) -> None:
        """The same among the ranks that have the same pipeline coordinate; all ranks call it equally often."""
        per_stage = self.mesh.group_size(Group.STAGE)
        self._check_same(what, value, text, first_of=lambda rank: rank // per_stage * per_stage)

    def _check_same(
        self, what: str, value: str, text: Callable[[], str] | None, *, first_of: Callable[[int], int]
    ) -> None:
        if not self.has_peers:
            return
        values: list[str] = self.all_gather_object(value)
        others = [rank for rank, other in enumerate(values) if other != values[first_of(rank)]]
        if others:
            first = first_of(others[0])
            why = "all ranks run the same program on the same configuration"
            if text is not None:
                texts: list[str] = self.all_gather_object(text())
                why += "; " + find_first_difference(texts[first], texts[others[0]])
            raise ConfigError(
                f"{what} of rank {others[0]} is not that of rank {first}",
                why=why,
                do="start every rank with the same command, code and files",
            )

    def coords(self) -> Tensor:
        """This rank's mesh coordinates: the only thing about a rank that compute may depend on."""
        coordinates = [self.mesh.coordinate(self.rank, axis) for axis in COORDS]
        return torch.tensor(coordinates, dtype=torch.int64, device=self.device)

    def describe(self) -> str:
        """The devices of this run in words."""
        mesh = self.mesh
        if mesh.world_size == 1:
            return str(self.device)
        names = ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep", "etp")
        degrees = [f"{name} {getattr(mesh, name)}" for name in names if getattr(mesh, name) > 1]
        return f"{mesh.world_size} x {self.device.type} ({', '.join(degrees)})"

    def at_close(self, release: Callable[[], None]) -> None:
        """Call this when the groups are closed: for libraries that hold on to a group they were given."""
        self._closing.append(release)

    def close(self) -> None:
        """Take the names back and drop every reference to a group."""
        for release in self._closing:
            release()
        for group in self._serving:
            remove_group_alias(group.value)
        self._native, self._serving, self._on_host, self._closing = {}, {}, {}, []


def _serve_with_gloo(native: dist.ProcessGroup, device: torch.device) -> dist.ProcessGroup:
    """gloo behind what makes it fit for graphs: sums in rank order, and host memory between it and a GPU."""
    ordered = OrderedSums(native) if native.size() >= MIN_RANKS else native
    return HostStagedGroup(ordered) if device.type == "cuda" else ordered


@contextmanager
def joined_groups(
    mesh: Mesh,
    device: torch.device,
    *,
    timeout_seconds: float = 300.0,
    files_timeout_seconds: float = FILES_SECONDS,
    flight_folder: Path | None = None,
    shares_gpus: bool = False,
) -> Iterator[Groups]:
    """Join the ranks a launcher started (or be the only one), and leave in order whatever happens.

    What they talk over is decided for all of them together; `shares_gpus` lets several have one GPU, over gloo.
    After a failure, each rank reports what its collectives were doing to `flight_folder`.
    """
    rank = int(os.environ.get("RANK", "0"))
    if device.type == "cuda":
        torch.cuda.set_device(device)  # NCCL, FSDP2 and every launch without a device argument take the current one
    set_up_flight(flight_folder)
    started_here, excepthook = not dist.is_initialized(), sys.excepthook
    _free_groups_at_exit()
    if started_here:
        make_room_for_sockets(mesh.world_size)
        limit = timedelta(seconds=files_timeout_seconds)
        store, world_size = join(mesh.world_size, rank, limit)
        backend = agree_on_backend(store, rank, world_size, device, shares_gpus=shares_gpus)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=limit)
    groups = Groups(mesh, rank, device, timeout_seconds=timeout_seconds, files_timeout_seconds=files_timeout_seconds)
    leave: Callable[[], None] = dist.destroy_process_group
    try:
        yield groups
    except BaseException as error:
        record_failure(error)
        write_flight(flight_folder, rank, mesh.world_size, error)
        leave = abort_process_groups  # destroying waits for kernels, which may wait for a peer that is gone
        raise
    else:
        sys.excepthook = excepthook  # torch's begins every line of every later traceback with the rank
    finally:
        groups.close()
        if started_here:
            leave()


@functools.cache
def _free_groups_at_exit() -> None:
    """Collect garbage before the interpreter ends: FSDP2's modules refer to each other, and to process groups.

    So do the frames of an error that nobody caught; it has been printed by then.
    """

    def free() -> None:
        traceback.clear_frames(getattr(sys, "last_traceback", None))
        gc.collect()

    atexit.register(free)


@contextmanager
def fake_groups(mesh: Mesh, rank: int, device: torch.device) -> Iterator[Groups]:
    """One process that believes to be `rank` of any mesh: collectives move nothing, shapes are right."""
    dist.init_process_group("fake", store=fake_store(), rank=rank, world_size=mesh.world_size)
    groups = Groups(mesh, rank, device, is_fake=True)
    try:
        yield groups
    finally:
        groups.close()
        dist.destroy_process_group()


def find_first_difference(one: str, other: str) -> str:
    """The first line in which two texts differ, with its number and both forms."""
    lines = itertools.zip_longest(one.splitlines(), other.splitlines(), fillvalue="(nothing)")
    for number, (left, right) in enumerate(lines, 1):
        if left != right:
            return f"line {number}: {left.strip()!r} and {right.strip()!r}"
    return "they print alike"
