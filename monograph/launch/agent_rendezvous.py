"""Let the agents of several nodes meet at a store that listens on one interface and is never unpickled.

Whoever reaches the store can still stop the job, or answer in place of a node, so the network between the nodes must be
trusted. The interface is GLOO_SOCKET_IFNAME where that is set, else the one towards the first node.
"""

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from torch.distributed import DistNetworkError, DistStoreError, Store, TCPStore
from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousParameters,
    rendezvous_handler_registry,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
    DEFAULT_PORT,
    C10dRendezvousBackend,
    create_backend,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

from monograph.compat.rendezvous_state import BACKEND, JsonState
from monograph.errors import ConfigError, MonographError
from monograph.log import get_log
from monograph.parallel.interfaces import GLOO_INTERFACE, find_interface, find_interface_address
from monograph.parallel.meeting import OWN_ADDRESS_VARIABLE, listen_on
from monograph.system.foreign_text import show

log = get_log("agent")
_T = TypeVar("_T")
SECONDS_TO_MEET = 600
"""torch's own limit for agents to find each other, which begins when the first of them has stopped its ranks. Also how
long the others wait for the first one's store: nodes of a job may start minutes apart, as images are pulled."""
_READ_SECONDS = 60
"""torch's own limit for an answer of the store."""


def find_own_address(host: str, port: int) -> str:
    """The IPv4 address by which this node reaches the first one, and is reached; "" when that cannot be known.

    The first node's own name may lead to its loopback, which other nodes do not reach.
    """
    if given := os.environ.get(GLOO_INTERFACE):
        address = find_interface_address(given)
        if not address and given not in [name for _, name in socket.if_nameindex()]:
            names = ", ".join(name for _, name in socket.if_nameindex())
            raise ConfigError(
                f"{GLOO_INTERFACE} is {given}", why="this node has no such interface", do=f"one of {names}"
            )
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking, contextlib.suppress(OSError):
        asking.connect((host, port or 1))  # sends nothing
        address = str(asking.getsockname()[0])
        if not address.startswith("127.") or host == "localhost" or host.startswith("127."):
            return address
    return ""


@contextmanager
def agent_rendezvous(endpoint: str, local_addr: str | None) -> Iterator[dict[str, Any]]:
    """Yield the settings of torch's LaunchConfig by which the agents of several nodes meet.

    Where no address is found (IPv6 only, a first node whose name leads to its loopback), torch's store is used.
    """
    try:
        host, port = parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)
    except ValueError as error:
        raise ConfigError(
            f"--rdzv-endpoint is {show(endpoint)}",
            why=f"it names the first node and a port: {show(error)}",
            do="HOST:PORT; see how the job file finds the first node",
        ) from None
    address = find_own_address(host, port)
    if not address:
        log.warning(
            "the stores of this job listen on all networks of a node: no single address leads to %s; set %s to the "
            "interface that the nodes meet over",
            endpoint,
            GLOO_INTERFACE,
        )
        yield {"rdzv_backend": BACKEND}
        return
    interface = find_interface(address)
    added = {OWN_ADDRESS_VARIABLE: address} | (
        {GLOO_INTERFACE: interface} if interface and GLOO_INTERFACE not in os.environ else {}
    )
    os.environ |= added
    try:
        yield {"rdzv_backend": BACKEND, "local_addr": local_addr or address}
    finally:
        for name in added:
            os.environ.pop(name, None)


def open_store(own: str, endpoint: str) -> TCPStore:
    """The store at the endpoint, which the first agent of the node with that address keeps."""
    host, port = parse_rendezvous_endpoint(endpoint, DEFAULT_PORT)
    limit = timedelta(seconds=_READ_SECONDS)
    is_first = host in (socket.gethostname(), socket.getfqdn())
    with contextlib.suppress(OSError):  # a name that is not known yet: another node's, which is waited for
        found = [str(each[4][0]) for each in socket.getaddrinfo(host, port, socket.AF_INET)]
        is_first = is_first or own in found or any(address.startswith("127.") for address in found)
    if is_first:
        with contextlib.suppress(OSError):  # another agent of this node keeps it already
            bound, file = listen_on(own, port)
            return TCPStore(own, bound, is_master=True, wait_for_workers=False, timeout=limit, master_listen_fd=file)
    there, longest = own if is_first else host, timedelta(seconds=SECONDS_TO_MEET)
    store = _in_time(lambda: TCPStore(there, port, is_master=False, timeout=longest))
    store.set_timeout(limit)
    return store


def _in_time(connect: Callable[[], _T]) -> _T:
    """Connect in a thread: torch waits for ever for a program that answers nothing, and hears no signal meanwhile."""
    results: SimpleQueue[_T | Exception] = SimpleQueue()

    def work() -> None:
        try:
            results.put(connect())
        except Exception as error:
            results.put(error)

    Thread(target=work, daemon=True).start()
    try:
        result = results.get(timeout=SECONDS_TO_MEET)
    except Empty:
        raise DistNetworkError(f"nothing has answered as a store does for {SECONDS_TO_MEET} s") from None
    if isinstance(result, Exception):
        raise result
    return result


def _create(parameters: RendezvousParameters) -> RendezvousHandler:
    try:
        if own := os.environ.get(OWN_ADDRESS_VARIABLE):
            store: Store = open_store(own, parameters.endpoint)
            backend = C10dRendezvousBackend(store, parameters.run_id)
        else:
            parameters.config.setdefault("read_timeout", SECONDS_TO_MEET)
            backend, store = _in_time(lambda: create_backend(parameters))
    except (DistNetworkError, DistStoreError, RendezvousConnectionError) as error:
        raise MonographError(
            f"this node has found no agent of the first node at {show(parameters.endpoint)}",
            why=show(str(error.__cause__ or error).partition("\n")[0]),
            do="look at the first node's log: its agent keeps the store; its name must lead to it from here, and no "
            "other program may use the port (--port of monograph launch)",
        ) from None
    return create_handler(store, JsonState(backend), parameters)


rendezvous_handler_registry.register(BACKEND, _create)
