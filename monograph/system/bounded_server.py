"""HTTP servers that strangers cannot fill: so many connections, each for so long, and requests of known paths only.

Whoever reaches a port may send nothing, half a request, or one after the other. A server here has a bounded number of
threads and ends every connection after a time. When all places are taken, the connection that has waited longest
without a valid request gives its place up, so that those who know the path are still answered.
"""

import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class _Connection:
    deadline: float
    is_admitted: bool = False
    """It has sent a whole request with the secret path."""


class BoundedServer(ThreadingHTTPServer):
    """Answers GET below a secret path, on one address.

    A request has to be there whole after `request_seconds`, and its answer to be read after `answer_seconds` more.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[Any, ...],
        handler: type["BoundedHandler"],
        *,
        family: socket.AddressFamily = socket.AF_INET,
        max_connections: int,
        request_seconds: float,
        answer_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address_family = family
        self.token = secrets.token_urlsafe(16)
        self._max_connections, self._clock = max_connections, clock
        self._request_seconds, self._answer_seconds = request_seconds, answer_seconds
        self._connections: dict[socket.socket, _Connection] = {}
        self._changing = threading.Condition()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without asking a name server for the name of the address, which HTTPServer does."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Find a place for a new connection; without one it is closed."""
        with self._changing:
            if len(self._connections) >= self._max_connections:
                waiting = [one for one, state in self._connections.items() if not state.is_admitted]
                if not waiting:
                    return False
                _shut(waiting[0])
                # Its thread wakes up from reading and ends; until then there would be one more than allowed.
                if not self._changing.wait_for(lambda: len(self._connections) < self._max_connections, timeout=1.0):
                    return False
            self._connections[request] = _Connection(self._clock() + self._request_seconds)
        return True

    def service_actions(self) -> None:
        """End connections whose time is over. serve_forever calls this between requests, twice a second."""
        now = self._clock()
        with self._changing:
            for connection, state in self._connections.items():
                if state.deadline < now:
                    _shut(connection)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection and free its place."""
        super().shutdown_request(request)
        with self._changing:
            self._connections.pop(request, None)
            self._changing.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over connections that broke; anything else is a bug of ours and shows its traceback."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def admit(self, connection: socket.socket, path: str) -> str | None:
        """Return what follows the secret in a path, and keep the connection's place; None for any other path."""
        prefix = f"/{self.token}/".encode()
        asked = path.encode("utf-8", "replace")
        if not secrets.compare_digest(asked[: len(prefix)], prefix):
            return None
        with self._changing:
            if connection in self._connections:
                self._connections[connection] = _Connection(self._clock() + self._answer_seconds, is_admitted=True)
        return asked[len(prefix) :].decode("utf-8", "replace")

    def count_connections(self) -> int:
        """Connections that have a thread now."""
        with self._changing:
            return len(self._connections)


class BoundedHandler(BaseHTTPRequestHandler):
    """One request of a connection; requests are not worth a line of a log."""

    server: BoundedServer

    def do_GET(self) -> None:
        """Answer a request that knows the path; any other path is not found."""
        asked = self.server.admit(self.connection, self.path)
        if asked is None:
            self.send_error(404)
        else:
            self.answer(asked)

    def answer(self, asked: str) -> None:
        """Answer the part of the path behind the secret."""
        raise NotImplementedError

    def send_content(self, content: bytes, **headers: str) -> None:
        """Send a whole answer; a header's name is written with underscores."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _shut(connection: socket.socket) -> None:
    """End a connection that another thread may be reading from or writing to; that thread closes it."""
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
