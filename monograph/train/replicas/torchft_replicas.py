"""Replicas joined by torchft: a quorum before every update, sums over whoever takes part, and a vote after them.

Each replica is a world of its own. A rank adds up with the ranks of the same number in other replicas, over gloo and
through host memory. torchft decides who takes part, and hands the state of a replica with the latest step to those
that are behind.
"""

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor

from monograph.errors import ConfigError, MonographError
from monograph.log import get_log
from monograph.parallel.groups import Groups
from monograph.parallel.interfaces import leave_loopback
from monograph.parallel.meeting import listen_on
from monograph.train.replicas.agreement import ReplicaDigest, digest_state, explain_difference, read_rows
from monograph.train.replicas.buckets import replace_by_sums
from monograph.train.replicas.config import FaultToleranceConfig
from monograph.train.replicas.peer_state import PeerState
from monograph.train.replicas.replicas import Replicas
from monograph.train.replicas.state_server import STATE, StateServer

log = get_log("replicas")
_MIN_READERS = 8
"""Connections to the state server at once, where there are fewer replicas."""


class QuorumLost(MonographError):
    """Too few replicas are left."""


class ReplicatedRun(Protocol):
    """What replicas need of a run."""

    def collect_state(self) -> PeerState: ...
    def restore_state(self, state: PeerState) -> None: ...
    def is_finished(self) -> bool: ...


@contextmanager
def joined_replicas(
    config: FaultToleranceConfig, groups: Groups, run: ReplicatedRun, settings: int
) -> Iterator[Replicas]:
    """The replicas of a run while it trains; `settings` is a digest of what all of them must share."""
    replicas = TorchftReplicas(config, groups, run, settings) if config.replicas else Replicas()
    try:
        yield replicas
    finally:
        replicas.close()


class TorchftReplicas(Replicas):
    """This replica among others."""

    def __init__(self, config: FaultToleranceConfig, groups: Groups, run: ReplicatedRun, settings: int) -> None:
        os.environ.setdefault("RUST_LOG", "error")  # torchft's part in Rust logs every quorum otherwise
        from torchft import Manager

        self._config, self._groups, self._run, self._settings = config, groups, run, settings
        for name in ("torchft.manager", "torchft.process_group", "torchft.checkpointing"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # a lost replica is no error: it is reported below
        own = find_own_address(config)
        leave_loopback(str(own.address[0]))  # gloo connects the replicas, which may be on other machines
        host = own.name
        if groups.rank == 0:
            self._store = serve_store(own)
        address = groups.broadcast_object((host, self._store.port) if groups.rank == 0 else None)
        limit = timedelta(seconds=config.timeout_seconds)
        self._is_new, self._has_healed, self._is_last_alone = False, False, False
        self._group = _make_group(limit, self._note_members)
        self._manager: Any = Manager(
            pg=self._group,
            state_dict=None,
            load_state_dict=None,
            min_replica_size=config.min_replicas,
            use_async_quorum=False,
            init_sync=False,  # weights begin equal everywhere, which is checked
            timeout=limit,
            quorum_timeout=timedelta(seconds=config.quorum_seconds),
            connect_timeout=limit,
            rank=groups.rank,
            world_size=groups.mesh.world_size,
            store_addr=address[0],
            store_port=address[1],
            lighthouse_addr=config.lighthouse,
            replica_id=f"replica_{config.replica:05}",  # the order of parts is that of these names
            hostname=host,
            checkpoint_transport=StateServer(
                address=own.address,
                family=own.family,
                timeout_seconds=config.timeout_seconds,
                max_readers=max(_MIN_READERS, config.replicas),
                collect_own=run.collect_state,
            ),
        )
        self._manager.register_state_dict_fn(STATE, self._restore, run.collect_state)
        self._set_step()

    def join(self) -> None:
        self._is_new = self._has_healed = False
        is_last = self._run.is_finished()
        seconds = self._config.timeout_seconds if is_last else self._config.quorum_seconds
        try:
            self._manager.start_quorum(timeout=timedelta(seconds=seconds))
        except (TimeoutError, RuntimeError) as error:
            if is_last:
                log.warning("the other replicas have left; this one has the last step and ends, too")
                self._is_last_alone = True
                return
            raise QuorumLost(
                f"fewer than {self._config.min_replicas} replicas (fault_tolerance.min_replicas) within {seconds:g} s, "
                f"or no answer from the lighthouse at {self._config.lighthouse}",
                why=(re.findall(r'message: "([^"]*)"', str(error)) or [str(error)])[0],
                do="start the lighthouse and the missing replicas, then this one with --checkpoint.load auto",
            ) from None
        before = self.parts
        self.part, self.parts = self._manager.participating_rank(), self._manager.num_participants()
        if self._groups.any_rank(self._has_failed()) and self._groups.any_rank(self._has_healed):
            raise QuorumLost(
                "the state of another replica reached some ranks of this one only",
                why=self._describe_failure() or "another rank could not read it",
                do="start this replica again",
            )
        if self._is_new:
            self._check_agreement()
            log.info("%d of %d replicas take part (%d before)", self.parts, self._config.replicas, before)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        replace_by_sums(tensors, self._sum)

    def commit(self) -> bool:
        is_made: bool = self._manager.should_commit()
        if not is_made:
            log.warning("an update was not made and is tried again: %s", self._describe_failure() or "another rank")
        return is_made

    def settle(self) -> bool:
        if self._is_last_alone:
            return True
        self._sum(torch.zeros(1))  # a barrier: all have the state
        has_failed = self._groups.any_rank(self._has_failed())
        if has_failed:
            self._manager.should_commit()  # a vote that fails: the next quorum connects all of them anew
        return not has_failed

    def close(self) -> None:
        self._manager.shutdown(wait=False)
        self._group.shutdown()

    def _sum(self, flat: Tensor) -> bool:
        """Add up one buffer in place; False once anything has failed in this update."""
        self._manager.allreduce(flat, reduce_op=dist.ReduceOp.SUM).wait()
        error = self._manager.errored()
        if error is not None:
            # Others may wait for this replica, which has stopped to send: connections that close tell them at once.
            error.original_exception.with_traceback(None)  # it holds the collective, and that the connections
            self._group.abort()
        return error is None

    def _has_failed(self) -> bool:
        return self._manager.errored() is not None

    def _describe_failure(self) -> str:
        """The first sentence of what went wrong, without gloo's file names."""
        error = self._manager.errored()
        return "" if error is None else re.sub(r"^\[[^]]*\] ", "", str(error.original_exception)).partition(". ")[0]

    def _note_members(self) -> None:
        self._is_new = True

    def _restore(self, state: PeerState) -> None:
        self._run.restore_state(state)
        self._has_healed = True
        log.info("took over the state of another replica after step %d", state.values["step"])

    def _set_step(self) -> None:
        self._manager.load_state_dict({"step": self._run.collect_state().values["step"], "batches_committed": 0})

    def _check_agreement(self) -> None:
        """Compare settings and state with the others; only where they changed, because it reads every parameter."""
        state = self._run.collect_state()
        mine = ReplicaDigest(self._config.replica, self._settings, state.values["step"], digest_state(state))
        table = mine.to_row(self.part, self.parts)
        difference = explain_difference(read_rows(table), self.part) if self._sum(table) else None
        if self._groups.any_rank(difference is not None):
            raise difference or QuorumLost("another rank of this replica differs from the other replicas")


class OwnAddress(NamedTuple):
    """Where other replicas reach this process, and where it listens: on no other network of the machine."""

    family: socket.AddressFamily
    address: tuple[Any, ...]
    """As sockets name it; its port belongs to a connection that is closed."""

    @property
    def name(self) -> str:
        """As torchft takes it, which puts a port behind it without brackets."""
        return str(self.address[0]) if self.family == socket.AF_INET else socket.gethostname()


def find_own_address(config: FaultToleranceConfig) -> OwnAddress:
    """The address that this process has towards the lighthouse, once that answers."""
    place = urlsplit(config.lighthouse)
    deadline = time.monotonic() + config.timeout_seconds
    while True:
        try:
            found = socket.getaddrinfo(place.hostname, place.port or 80, type=socket.SOCK_STREAM)
            family, kind, number, _, target = min(found, key=lambda each: each[0] != socket.AF_INET)
            with socket.socket(family, kind, number) as link:
                link.settimeout(config.timeout_seconds)
                link.connect(target)
                return OwnAddress(socket.AddressFamily(family), link.getsockname())
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"fault_tolerance.lighthouse is {config.lighthouse}, which does not answer",
                    why=str(error),
                    do="start torchft_lighthouse first, at this address",
                ) from None
            time.sleep(0.5)


def serve_store(own: OwnAddress) -> dist.TCPStore:
    """A store that listens on the own address only; on IPv6 others look its name up, so it listens on all of them."""
    if own.family != socket.AF_INET:
        return dist.TCPStore(own.name, 0, is_master=True, wait_for_workers=False)
    port, number = listen_on(own.address[0], 0)
    return dist.TCPStore(own.name, port, is_master=True, wait_for_workers=False, master_listen_fd=number)


def _make_group(limit: timedelta, note: Callable[[], None]) -> Any:
    """torchft's gloo group, which also says when its members change."""
    from torchft import ProcessGroupGloo

    class ObservedMembers(ProcessGroupGloo):
        def configure(self, *args: Any, **kwargs: Any) -> None:
            note()
            super().configure(*args, **kwargs)

    return ObservedMembers(timeout=limit)
