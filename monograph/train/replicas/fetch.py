"""Fetch a file over HTTP from a peer that may be slow, endless or silent: bounded in bytes and in time."""

import http.client
import socket
import threading
import time
from contextlib import suppress
from http import HTTPStatus
from urllib.parse import urlsplit


class NotServedYet(OSError):
    """The peer does not have the file now."""


def fetch(url: str, *, max_bytes: int, deadline: float) -> bytes:
    """Content behind an http URL, read before `deadline` (of time.monotonic); an OSError says why there is none.

    Other schemes, such as file:, are refused; redirects are not followed, and no proxy is asked.
    """
    try:
        place = urlsplit(url)
        host, port = place.hostname, place.port
    except ValueError:
        host, port = None, None
    if host is None or place.scheme != "http" or not url.isascii():
        raise OSError(f"{url!r} is not the address of a replica's state")
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError("the state was not read in time")
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    try:
        connection.connect()
        # Timeouts of a socket begin anew with every byte; the connection ends at the deadline whatever came.
        timer = threading.Timer(max(0.0, deadline - time.monotonic()), _shut, [connection.sock])
        timer.daemon = True
        timer.start()
        try:
            connection.request("GET", place.path)
            return _read(connection.getresponse(), max_bytes)
        finally:
            timer.cancel()
    except (http.client.HTTPException, OSError) as error:
        if time.monotonic() >= deadline:
            raise TimeoutError("the state was not read in time") from None
        if isinstance(error, OSError):
            raise
        raise OSError(f"the answer is not HTTP: {type(error).__name__}") from None
    finally:
        connection.close()


def _read(answer: http.client.HTTPResponse, max_bytes: int) -> bytes:
    if answer.status == HTTPStatus.SERVICE_UNAVAILABLE:
        raise NotServedYet("the replica does not serve this step")
    if answer.status != HTTPStatus.OK or answer.length is None:
        raise OSError(f"the replica answered {answer.status}, not with a state")
    length = answer.length
    if length > max_bytes:
        raise OSError(f"the replica sends {length:,} bytes, where the own state and its header have {max_bytes:,}")
    content = answer.read(length)
    if len(content) != length:
        raise OSError(f"the connection ended after {len(content):,} of {length:,} bytes")
    return content


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
