"""How ranks find each other in a store that may hold what earlier ranks left there.

A launcher that starts ranks anew may keep its store. Which round this is, no variable says alike on all nodes: torch's
count of restarts belongs to one agent. So the first rank makes a name that no round before had, and every other rank
asks for it under a name of its own, which no round before had either.
"""

import os
import resource
import secrets
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist

from monograph.errors import ConfigError

STORE_VARIABLE = "MONOGRAPH_RANK_STORE"
"""The file that ranks of one machine meet in, which their launcher names; elsewhere they meet at MASTER_ADDR."""
NO_PORT = 0
"""The MASTER_PORT of a launcher that names a file. With any other port the file's name was inherited from a shell that
a rank of another job had started, and would keep the ranks of this job apart."""
OWN_ADDRESS_VARIABLE = "MONOGRAPH_NODE_ADDRESS"
"""The address by which other nodes reach this one, which its agent names: a store listens there and nowhere else."""
_MANY_WORKERS = 1 << 30
"""The last of so many would delete the file; the launcher does."""
_WAITING_CLIENTS = 2048
_OTHER_FILES = 512
"""Data, checkpoints, devices and NCCL."""
_PAUSE_SECONDS = (0.005, 0.2)
"""Between two looks of the first rank: at first, and at last."""


def join(expected: int, rank: int, limit: timedelta) -> tuple[dist.Store, int]:
    """A store for this joining alone, and how many ranks have met there."""
    if expected == 1 and not {"MASTER_ADDR", "WORLD_SIZE"} <= os.environ.keys():
        return dist.HashStore(), 1
    if (path := os.environ.get(STORE_VARIABLE)) and os.environ.get("MASTER_PORT") == str(NO_PORT):
        file, world_size = dist.FileStore(path, _MANY_WORKERS), int(os.environ["WORLD_SIZE"])
        file.set_timeout(limit)
        return meet(file, rank, world_size, timeout=limit), world_size
    with _explained_rendezvous():
        if rank == 0 and os.environ.get(OWN_ADDRESS_VARIABLE) == os.environ.get("MASTER_ADDR", ""):
            world_size = int(os.environ["WORLD_SIZE"])
            return meet(_serve_store(limit), rank, world_size, timeout=limit), world_size
        store, _, world_size = next(dist.rendezvous("env://", timeout=limit))
        return meet(store, rank, world_size, timeout=limit), world_size


def _serve_store(limit: timedelta) -> dist.Store:
    """The store of the first rank, on its node's address alone; torch's own listens on all of them."""
    address = os.environ[OWN_ADDRESS_VARIABLE]
    try:
        port, file = listen_on(address, int(os.environ["MASTER_PORT"]))
    except OSError as error:
        raise dist.DistNetworkError(f"{address}: {str(error).lower()}") from None
    return dist.TCPStore(address, port, is_master=True, wait_for_workers=False, timeout=limit, master_listen_fd=file)


def listen_on(address: str, port: int) -> tuple[int, int]:
    """Listen on one IPv4 address; return the port and the socket's file, which a store takes over."""
    with socket.socket(socket.AF_INET) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address, port))
        listening.listen(_WAITING_CLIENTS)
        return listening.getsockname()[1], listening.detach()


@contextmanager
def _explained_rendezvous() -> Iterator[None]:
    """Say in words why ranks cannot find each other: what a launcher sets is missing, or its port is taken."""
    where = f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"
    try:
        yield
    except ValueError as error:
        raise ConfigError(
            "this process cannot join the other ranks",
            why=str(error),
            do="start with --ranks N or under torchrun; or unset RANK, WORLD_SIZE and MASTER_ADDR for one process",
        ) from None
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        is_taken = "EADDRINUSE" in str(error) or "address already in use" in str(error)
        raise ConfigError(
            f"the ranks cannot meet at {where}",
            why="another program uses that port" if is_taken else str(error).splitlines()[0],
            do="choose another MASTER_PORT" if is_taken else "check MASTER_ADDR and MASTER_PORT, and that rank 0 runs",
        ) from None


def make_room_for_sockets(ranks: int) -> None:
    """Let this process open a socket to every other rank for each of the two groups of the hosts.

    gloo can also connect when two ranks first talk, but then it waits for a rank that has died for ever.
    """
    needed = 2 * ranks + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard not in (resource.RLIM_INFINITY,) and hard < needed:
        raise ConfigError(
            f"a rank of {ranks} opens about {needed} files, and this system allows {hard}",
            why="hosts agree and save over connections between all ranks",
            do=f"raise the limit on every node: ulimit -Hn {needed}, or LimitNOFILE of the service that starts ranks",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def meet(store: dist.Store, rank: int, world_size: int, *, timeout: timedelta) -> dist.Store:
    """The part of the store that belongs to this joining alone, once all of its ranks are here."""
    name = secrets.token_hex(8)
    if rank:
        store.set(f"asked-{store.add('asking', 1)}", name)
        name = store.get(f"answer-to-{name}").decode()
        own = dist.PrefixStore(f"joining-{name}", store)
        own.add("arrived", 1)
        return own
    own = dist.PrefixStore(f"joining-{name}", store)
    _answer(store, own, name, world_size, seconds=timeout.total_seconds())
    return own


def _answer(store: dist.Store, own: dist.Store, name: str, world_size: int, *, seconds: float) -> None:
    """Tell everyone who asks; those that asked and are dead by now do not come, and nobody waits for them."""
    waiting: set[int] = set()
    until = time.monotonic() + seconds
    seen, pause = 0, _PAUSE_SECONDS[0]
    while (arrived := own.add("arrived", 0)) < world_size - 1:
        asking = store.add("asking", 0)
        waiting |= set(range(seen + 1, asking + 1))
        seen = asking
        for number in sorted(waiting):
            if store.check([f"asked-{number}"]):
                store.set(f"answer-to-{store.get(f'asked-{number}').decode()}", name)
                waiting.remove(number)
        if time.monotonic() > until:
            raise ConfigError(
                f"{world_size - 1 - arrived} of {world_size} ranks have not come",
                why=f"the first rank has waited for them for {seconds:.0f} s (checkpoint.timeout_seconds)",
                do="look at the logs of the other ranks: what ended them is there",
            )
        time.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS[1])
