"""Serves the page of runs on this machine's loopback, under a path that only its reader knows. Loads without torch."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.report.page import make_run_page
from monograph.system.bounded_server import BoundedHandler, BoundedServer
from monograph.system.foreign_text import escape_values
from monograph.watch.runs import collect_runs, make_readers

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'"
MAX_CONNECTIONS = 16
_REQUEST_SECONDS, _ANSWER_SECONDS = 10.0, 120.0


class RunServer(BoundedServer):
    """The page and its data for some folders; nothing else is served."""

    def __init__(self, folders: Sequence[Path], port: int = 0) -> None:
        self._readers = make_readers(folders)
        self._reading = threading.Lock()
        super().__init__(
            ("127.0.0.1", port),
            RunHandler,
            max_connections=MAX_CONNECTIONS,
            request_seconds=_REQUEST_SECONDS,
            answer_seconds=_ANSWER_SECONDS,
        )

    def collect(self) -> dict[str, Any]:
        """Content of the page now."""
        with self._reading:
            return collect_runs(self._readers, is_live=True)

    @property
    def address(self) -> str:
        """Where a browser finds the page."""
        return f"http://127.0.0.1:{self.server_port}/{self.token}/"


class RunHandler(BoundedHandler):
    """Answers GET of the page and of its data; a wrong token is not found."""

    server: RunServer

    def answer(self, asked: str) -> None:
        """Send the page, or the data that it asks for every two seconds."""
        if asked not in ("", "data"):
            self.send_error(404)
            return
        runs = self.server.collect()
        content = strict_json.dump(escape_values(runs), is_compact=True) if asked else make_run_page(runs)
        self.send_content(
            content.encode(),
            Content_Type="application/json" if asked else "text/html; charset=utf-8",
            Content_Security_Policy=_POLICY,
            Cache_Control="no-store",
            X_Content_Type_Options="nosniff",
            Referrer_Policy="no-referrer",
        )
