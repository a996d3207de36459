"""Other users of the machine: no port of a launcher or its ranks takes data that is unpickled, or listens elsewhere."""

import base64
import os
import pickle
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.kit.paced import find_processes, wait_until
from tests.kit.preloaded import FORKS
from tests.test_launch import LONG, finish, start, wait_for_steps

LISTENING = "0A"
"""Its number in /proc/net/tcp."""
SECONDS_OF_OLD_ATTACK, SECONDS_TO_ANSWER, SECONDS_AFTER_OURS = 25, 15, 4


class Evil:
    """Unpickled, it leaves a file."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (Path(self.mark),))


def find_listening(pids):
    """(address, port) of every socket on which one of these processes listens."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                inodes.add(os.readlink(link))
            except FileNotFoundError:
                continue
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == LISTENING and f"socket:[{words[9]}]" in inodes:
                address, port = words[1].split(":")
                packed = b"".join(bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8))
                found.append((socket.inet_ntop(family, packed), int(port, 16)))
    return sorted(found)


def poison(port, mark):
    """Fill a store with pickles that run code, as torch's rendezvous reads them; exit code 0 if there is a store."""
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=3))
    payload = base64.b64encode(pickle.dumps(Evil(mark)))
    for key in store.list_keys():
        if "rendezvous" in key:
            store.set(key, payload)


def find_stores(ports, mark):
    """Ports that are stores, which are poisoned. A client of a store waits for ever for what is none; those of a store
    of ours, asked beside them, say how long a store takes to answer."""
    ours = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ports = [*ports, ours.port]
    asking = {port: FORKS.Process(target=poison, args=(port, mark), daemon=True) for port in ports}
    for process in asking.values():
        process.start()
    asking[ours.port].join(SECONDS_TO_ANSWER)
    assert asking[ours.port].exitcode == 0, "a store is found"
    deadline = time.monotonic() + SECONDS_AFTER_OURS
    for process in asking.values():
        process.join(max(0.0, deadline - time.monotonic()))
    found = [port for port, process in asking.items() if process.exitcode == 0]
    for process in asking.values():
        process.kill()
        process.join()
    return found[:-1]


@pytest.fixture
def running(tmp_path):
    """Two ranks that train, and their launcher."""
    folder = tmp_path / "run"
    process = start(folder, "--ranks", "2", *LONG, "--checkpoint.interval", "0", "--compile.mode", "eager")
    try:
        wait_for_steps(folder, 2, process)
        yield folder, process
    finally:
        process.terminate()
        finish(process, 60)


def test_strangers_find_no_store_and_ranks_listen_on_the_loopback_alone(running, tmp_path):
    folder, process = running
    listening = find_listening([process.pid, *find_processes(str(folder))])
    stores = find_stores([port for _, port in listening], tmp_path / "mark")
    deadline = time.monotonic() + SECONDS_OF_OLD_ATTACK * bool(stores)
    while time.monotonic() < deadline and not (tmp_path / "mark").exists():
        time.sleep(0.5)
    assert not (tmp_path / "mark").exists(), "a launcher ran the code of another user"
    assert stores == []
    assert {address for address, _ in listening} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert listening, "gloo listens, so the search finds what there is"


def test_the_store_of_local_ranks_can_be_opened_by_this_user_alone(running):
    folder, process = running
    environment = (Path("/proc") / str(next(iter(find_ranks(folder)))) / "environ").read_bytes().decode()
    (path,) = [Path(word.partition("=")[2]) for word in environment.split("\0") if word.startswith("MONOGRAPH_RANK_S")]
    assert path.is_file() and path.parent.stat().st_mode & 0o077 == 0
    process.terminate()
    assert finish(process, 60)[0] == 75
    wait_until(lambda: not path.parent.exists(), 5, "its folder is gone")


def find_ranks(folder):
    """Pids of the ranks of a run."""
    return [pid for pid, rank in find_processes(str(folder)).items() if rank]
