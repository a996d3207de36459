"""Let the ranks of one machine meet without a port: in a file of a folder that only this user can open.

torch's own launchers keep a TCPStore. It listens on all addresses, without a password, and the launcher unpickles what
lies in it: every user of the machine, and of its network, could run code as the one who trains.
"""

import fcntl
import os
import re
import socket
import time
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
from monograph.private_temporary import find_private_temporary, private_temporary
from monograph.system.own_tree import remove_made

_BACKEND = "monograph-local"
_PREFIX, _STORE = "monograph-ranks-", re.compile(r"store-\d+")
_LEFT_OVER_SECONDS = 3600.0
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


def remove_left_over() -> None:
    """Delete the folders of launchers that were killed: nobody holds their lock, and they are not new."""
    for path in find_private_temporary(_PREFIX):
        with suppress(OSError):  # it is in use, or has gone
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                is_old = os.fstat(folder).st_mtime < time.time() - _LEFT_OVER_SECONDS  # the lock comes after the name
                if is_old and all(map(_STORE.fullmatch, os.listdir(folder))):
                    remove_made(path)
            finally:
                os.close(folder)


@contextmanager
def local_rendezvous() -> Iterator[dict[str, Any]]:
    """Yield the settings of torch's LaunchConfig by which ranks of this machine meet; they listen on the loopback."""
    loopback = next((name for _, name in socket.if_nameindex() if name in LOOPBACKS), "")
    names = [name for name in _INTERFACES if loopback and name not in os.environ]
    remove_left_over()
    with private_temporary(_PREFIX, locks=True) as folder:
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
