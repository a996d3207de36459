"""Serves the page of runs on this machine's loopback, under a path that only its reader knows. Loads without torch."""

import secrets
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.report.page import make_run_page
from monograph.watch.runs import collect_runs, make_readers

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"


class RunServer(ThreadingHTTPServer):
    """The page and its data for some folders; nothing else is served."""

    daemon_threads = True

    def __init__(self, folders: Sequence[Path], port: int = 0) -> None:
        self._readers = make_readers(folders)
        self._reading = threading.Lock()
        self.token = secrets.token_urlsafe(16)
        super().__init__(("127.0.0.1", port), RunHandler)

    def collect(self) -> dict[str, Any]:
        """What the page shows now."""
        with self._reading:
            return collect_runs(self._readers, is_live=True)

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://127.0.0.1:{self.server_address[1]}/{self.token}/"


class RunHandler(BaseHTTPRequestHandler):
    """Answers GET of the page and of its data; a wrong token is not found."""

    server: RunServer

    def do_GET(self) -> None:
        """Answer one request."""
        prefix = f"/{self.server.token}/"
        if not secrets.compare_digest(self.path[: len(prefix)], prefix) or self.path[len(prefix) :] not in ("", "data"):
            self.send_error(404)
            return
        runs = self.server.collect()
        is_data = self.path.endswith("data")
        content = (strict_json.dump(runs, is_compact=True) if is_data else make_run_page(runs)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if is_data else "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line."""
