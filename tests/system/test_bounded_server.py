"""Servers that strangers reach: silent, slow and flooding clients hold few threads, for a bounded time."""

import socket
import threading
import time
from contextlib import contextmanager

import pytest

from monograph.system.bounded_server import BoundedHandler, BoundedServer


class Clock:
    """Seconds that a test moves on."""

    now = 100.0

    def __call__(self):
        return self.now


class Echo(BoundedHandler):
    def answer(self, asked):
        if asked == "wait":
            self.server.waiting.set()
            assert self.server.release.wait(5)
        if asked == "bug":
            raise LookupError("a bug of ours")
        self.send_content(asked.encode(), Cache_Control="no-store")


@contextmanager
def serving(**options):
    clock = Clock()
    limits = {"max_connections": 4, "request_seconds": 5.0, "answer_seconds": 60.0} | options
    with BoundedServer(("127.0.0.1", 0), Echo, clock=clock, **limits) as server:
        server.waiting, server.release = threading.Event(), threading.Event()
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server, clock
        server.release.set()
        server.shutdown()
        thread.join(5)


def open_link(server, sent=b""):
    link = socket.create_connection(server.server_address, timeout=5)
    link.sendall(sent)
    return link


def ask(server, path):
    with open_link(server, f"GET /{server.token}/{path} HTTP/1.0\r\n\r\n".encode()) as link:
        return b"".join(iter(lambda: link.recv(1 << 16), b""))


def wait_until(holds):
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def is_closed(link):
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True


def test_what_follows_the_secret_is_answered_and_nothing_else():
    with serving() as (server, _):
        answer = ask(server, "data")
        assert answer.startswith(b"HTTP/1.0 200") and answer.endswith(b"\r\n\r\ndata") and b"no-store" in answer
        for path in (b"/", b"/x/data", b"\xff", b"/\xff\xfe", b"*", b"http://x/", server.token.encode()):
            with open_link(server, b"GET " + path + b" HTTP/1.0\r\n\r\n") as link:
                assert link.recv(20).startswith(b"HTTP/1.0 404")


def test_silent_and_half_requests_hold_no_more_threads_than_allowed():
    before = threading.active_count()
    with serving() as (server, _):
        links = [open_link(server, b"GET /half" * (number % 2)) for number in range(40)]
        wait_until(lambda: sum(map(is_done, links)) >= 36)
        assert server.count_connections() <= 4 and threading.active_count() <= before + 5
        assert ask(server, "answered").endswith(b"answered")
        for link in links:
            link.close()


def is_done(link):
    link.setblocking(False)
    try:
        return link.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_a_request_that_does_not_end_is_ended_after_its_time():
    with serving() as (server, clock), open_link(server, b"GET /") as link:
        wait_until(lambda: server.count_connections() == 1)
        clock.now += 4.9
        link.sendall(b"x")
        assert not is_done(link)
        clock.now += 0.2
        link.setblocking(True)
        assert is_closed(link)
        wait_until(lambda: server.count_connections() == 0)


def test_an_answer_that_is_not_read_is_ended_after_its_time():
    class Long(Echo):
        def answer(self, asked):
            self.send_content(bytes(64 << 20))

    clock = Clock()
    limits = {"max_connections": 4, "request_seconds": 5.0, "answer_seconds": 60.0}
    with BoundedServer(("127.0.0.1", 0), Long, clock=clock, **limits) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        with open_link(server, f"GET /{server.token}/ HTTP/1.0\r\n\r\n".encode()) as link:
            assert link.recv(4) == b"HTTP"
            clock.now += 59
            time.sleep(0.05)
            assert server.count_connections() == 1
            clock.now += 2
            wait_until(lambda: server.count_connections() == 0)
        server.shutdown()
        thread.join(5)


def test_requests_with_the_secret_keep_their_place_and_others_find_none():
    with serving(max_connections=1) as (server, _):
        link = open_link(server, f"GET /{server.token}/wait HTTP/1.0\r\n\r\n".encode())
        assert server.waiting.wait(5)
        with open_link(server, b"GET /") as late:
            assert is_closed(late)
        server.release.set()
        assert link.recv(20).startswith(b"HTTP/1.0 200")
        link.close()


@pytest.mark.parametrize(
    "sent",
    [b"\x16\x03\x01\x02\x00", b"GET", b"GET / HTTP/9.9\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n", b"\r\n", b"A" * 70_000,
     b"GET / HTTP/1.0\r\n" + b"A: b\r\n" * 300 + b"\r\n", b"POST / HTTP/1.0\r\nContent-Length: -1\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_request_leaves_nothing_in_the_terminal(sent, capfd):
    with serving() as (server, _):
        with open_link(server, sent) as link:
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closes with a reset
        assert ask(server, "x").endswith(b"x")
        wait_until(lambda: server.count_connections() == 0)
    assert capfd.readouterr().err == ""


def test_a_bug_of_ours_shows_its_traceback(capfd):
    with serving() as (server, _):
        assert ask(server, "bug") == b""
    assert "LookupError: a bug of ours" in capfd.readouterr().err
