"""Let the ranks of one machine meet without a port: in a file of a folder that only this user can open.

torch's own launchers keep a TCPStore. It listens on all addresses, without a password, and the launcher unpickles what
lies in it: every user of the machine, and of its network, could run code as the one who trains.
"""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch.distributed import HashStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    rendezvous_handler_registry,
)

from monograph.parallel.interfaces import GLOO_INTERFACE, LOOPBACKS
from monograph.parallel.meeting import NO_PORT, STORE_VARIABLE
from monograph.private_temporary import private_temporary

_BACKEND = "monograph-local"
_INTERFACES = (GLOO_INTERFACE, "NCCL_SOCKET_IFNAME")
"""Where the libraries of the ranks listen; unset, on an address that the network reaches."""


class LocalRendezvous(RendezvousHandler):
    """The only agent of a job meets itself. Every round of ranks has a file of its own: a rank that is killed while it
    writes may leave half a record in it."""

    def __init__(self, run_id: str, folder: Path) -> None:
        self._run_id, self._folder, self._round = run_id, folder, 0

    def get_backend(self) -> str:
        return _BACKEND

    @property
    def use_agent_store(self) -> bool:
        return False

    def next_rendezvous(self) -> RendezvousInfo:
        os.environ[STORE_VARIABLE] = str(self._folder / f"store-{self._round}")
        self._round += 1
        return RendezvousInfo(HashStore(), 0, 1, RendezvousStoreInfo("localhost", NO_PORT))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    return LocalRendezvous(parameters.run_id, Path(parameters.endpoint))


rendezvous_handler_registry.register(_BACKEND, _create)


@contextmanager
def local_rendezvous() -> Iterator[dict[str, Any]]:
    """Yield the settings of torch's LaunchConfig by which ranks of this machine meet; they listen on the loopback."""
    loopback = next((name for _, name in socket.if_nameindex() if name in LOOPBACKS), "")
    names = [name for name in _INTERFACES if loopback and name not in os.environ]
    with private_temporary("monograph-ranks-", locks=True) as folder:
        held = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        with suppress(OSError):  # on a file server that locks no folders
            fcntl.flock(held, fcntl.LOCK_SH)  # services that clean temporary folders leave a locked one alone
        os.environ |= dict.fromkeys(names, loopback)
        try:
            yield {"rdzv_backend": _BACKEND, "rdzv_endpoint": str(folder)}
        finally:
            os.close(held)
            for name in (*names, STORE_VARIABLE):
                os.environ.pop(name, None)
