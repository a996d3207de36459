"""The state of a replica on its way to another one: who may read it, how much is read, and what is believed of it."""

import json
import socket
import threading
import time
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch

from monograph.train.replicas.config import FaultToleranceConfig
from monograph.train.replicas.fetch import fetch
from monograph.train.replicas.peer_state import PeerState, StateMismatch
from monograph.train.replicas.state_server import (
    MANAGER,
    STATE,
    USER,
    StateServer,
    check_received,
    read_state,
    write_state,
)
from monograph.train.replicas.torchft_replicas import OwnAddress, find_own_address, serve_store
from tests.kit.runs import bits

VALUES = {"step": 7, "tokens": 84, "cursor": {"epoch": 0, "sample": 84}, "data": {}, "lr_plan": {}}
COUNTS = {"step": 7, "batches_committed": 14}


def make_state(**values):
    tensors = {"model/w": torch.randn(5, 3).t(), "model/n": torch.tensor(3), "rng/cpu": torch.get_rng_state()}
    return PeerState(tensors, VALUES | values)


@contextmanager
def serving(*, state=None, counts=COUNTS, timeout_seconds=5.0, **options):
    own = state or make_state()
    server = StateServer(
        address=("127.0.0.1", 0),
        timeout_seconds=timeout_seconds,
        max_readers=options.pop("max_readers", 8),
        collect_own=lambda: own,
    )
    try:
        yield server, {USER: {STATE: own}, MANAGER: counts}
    finally:
        server.shutdown()


def receive(server, metadata=None, seconds=5.0):
    return server.recv_checkpoint(0, metadata or server.metadata(), 7, timedelta(seconds=seconds))


@contextmanager
def peer(answer):
    """A replica's address behind which `answer(connection)` runs for every connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(1 << 16)
                        answer(connection)
                    except OSError:
                        pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/secret/"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_state_travels_as_safetensors_and_a_reader_that_is_early_waits():
    with serving() as (server, sent):
        threading.Timer(0.15, server.send_checkpoint, ([1], 7, sent, timedelta(seconds=5))).start()
        found = receive(server)
        assert found[MANAGER] == COUNTS and found[USER][STATE].values == VALUES
        tensors = sent[USER][STATE].tensors
        assert bits(found[USER][STATE].tensors) == bits({name: each.contiguous() for name, each in tensors.items()})
        server.disallow_checkpoint()
        with pytest.raises(OSError, match="does not serve this step"):
            receive(server, seconds=0.1)


def test_state_is_given_only_to_readers_that_the_quorum_told_the_secret():
    with serving() as (server, sent):
        server.send_checkpoint([1], 7, sent, timedelta(seconds=5))
        place, secret = server.metadata().rstrip("/").rsplit("/", 1)
        assert len(secret) >= 20
        for path in ("7", f"{secret[:-1]}/7", f"{secret}x/7", f"\xff{secret[1:]}/7", "", f"../{secret}/7"):
            with socket.create_connection(("127.0.0.1", int(place.rsplit(":", 1)[1])), timeout=5) as asking:
                asking.sendall(f"GET /{path} HTTP/1.0\r\n\r\n".encode("latin-1"))
                assert asking.recv(1 << 16).startswith(b"HTTP/1.0 404")


def test_replicas_listen_on_the_address_towards_the_lighthouse_only():
    with socket.create_server(("127.0.0.3", 0)) as lighthouse:
        address = f"http://127.0.0.3:{lighthouse.getsockname()[1]}"
        found = find_own_address(FaultToleranceConfig(replicas=2, lighthouse=address))
    assert found.family == socket.AF_INET and found.name == found.address[0] == "127.0.0.1"
    own = OwnAddress(socket.AF_INET, ("127.0.0.3", 5))
    store = serve_store(own)
    server = StateServer(
        address=own.address, family=own.family, timeout_seconds=1.0, max_readers=2, collect_own=make_state
    )
    try:
        assert server.metadata().startswith("http://127.0.0.3:")
        for port in (int(server.metadata().split(":")[2].split("/")[0]), store.port):
            socket.create_connection(("127.0.0.3", port), timeout=1).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", port), timeout=1)
    finally:
        server.shutdown()


def flood(connection):
    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    while True:
        connection.sendall(bytes(1 << 20))


def promise_too_much(connection):
    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")


def trickle(connection):
    connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        connection.sendall(b"x")
        time.sleep(0.02)


def trickle_headers(connection):
    connection.sendall(b"HTTP/1.0 200 OK\r\n")
    while True:
        connection.sendall(b"X: y\r\n" if time.sleep(0.05) is None else b"")


def stay_silent(connection):
    connection.recv(1)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (flood, "not with a state"),
        (promise_too_much, "sends 1,000,000,000,000 bytes"),
        (trickle, "not read in time"),
        (trickle_headers, "not read in time"),
        (stay_silent, "not read in time"),
        (lambda link: link.sendall(b"\x00\xff" * 50), "not HTTP"),
        (lambda link: link.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 50\r\n\r\nabc"), "after 3 of 50 bytes"),
        (lambda link: link.sendall(b"HTTP/1.0 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n"), "answered 302"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_peer_is_read_up_to_the_own_size_and_the_time_limit(answer, reason):
    start = time.monotonic()
    with serving() as (server, _), peer(answer) as metadata, pytest.raises(OSError, match=reason):
        receive(server, metadata, seconds=0.3)
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://x/", "http://", "http://[x", "http://h:99999999/", "7"])
def test_only_addresses_of_replicas_are_opened(url):
    with pytest.raises(OSError, match="is not the address"):
        fetch(url, max_bytes=10, deadline=time.monotonic() + 1)


@pytest.mark.parametrize(
    ("values", "counts", "reason"),
    [
        ({"step": 10**12}, {}, "step is 1000000000000, and the quorum is at step 7"),
        ({"step": "7"}, {}, "step is '7'"),
        ({}, {"step": 8}, "torchft's step is 8"),
        ({"cursor": {"epoch": 0, "sample": -5}}, {}, r"\[84, 14, 0, -5\]"),
        ({"cursor": 5}, {}, "cursor"),
        ({"tokens": 1e9}, {}, "tokens"),
        ({"tokens": -1}, {}, "tokens"),
        ({"lr_plan": 5}, {}, "it has no lr_plan"),
        ({}, {"batches_committed": None}, "None"),
    ],
)
def test_counts_that_no_run_can_have_are_not_taken_over(values, counts, reason):
    check_received(make_state(), COUNTS, step=7)
    with pytest.raises(StateMismatch, match=reason):
        check_received(make_state(**values), COUNTS | counts, step=7)


def test_what_is_received_is_checked_before_it_is_handed_over():
    with serving(counts={"step": 8, "batches_committed": 0}) as (server, sent):
        server.send_checkpoint([1], 7, sent, timedelta(seconds=5))
        with pytest.raises(StateMismatch, match="torchft's step is 8"):
            receive(server)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[:40],
        lambda data: b"",
        lambda data: (1 << 60).to_bytes(8, "little") + data[8:],
        lambda data: data.replace(b'"values"', b'"valuer"'),
        lambda data: data.replace(b'{\\"run\\"', b'{\\"rum\\"'),
        lambda data: (20_000).to_bytes(8, "little") + b"[" * 20_000,
        lambda data: len(head := json.dumps({"__metadata__": {"values": 5}}).encode()).to_bytes(8, "little") + head,
    ],
)
def test_a_state_that_is_no_state_is_refused_in_words(change):
    with pytest.raises(StateMismatch, match="it cannot be read"):
        read_state(change(write_state(make_state(), COUNTS)))


def test_silent_connections_neither_fill_the_server_nor_keep_a_reader_out():
    with serving(max_readers=3) as (server, sent):
        server.send_checkpoint([1], 7, sent, timedelta(seconds=5))
        port = int(server.metadata().split(":")[2].split("/")[0])
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(12)]
        assert receive(server)[MANAGER] == COUNTS
        assert sum(thread.name.endswith("(process_request_thread)") for thread in threading.enumerate()) <= 3
        for each in silent:
            each.close()
