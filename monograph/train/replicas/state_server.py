"""How a replica that is behind gets the state of another one: as a safetensors file over HTTP.

torchft would send a pickle, which can run code where it is read. Here only tensors and plain JSON are sent. The
methods with torchft's names are those that its Manager calls on a checkpoint transport.
"""

import json
import threading
import urllib.request
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from monograph import strict_json
from monograph.train.replicas.peer_state import PeerState

_VALUES = "values"
USER, MANAGER = "user", "torchft"
"""The parts of a state as the Manager hands it over: by the name it was registered with, and its own counts."""
STATE = "run"
"""The name of what is sent."""


def write_state(state: PeerState, counts: dict[str, int]) -> bytes:
    """A safetensors file with everything."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    values = strict_json.dump({STATE: state.values, MANAGER: counts})
    return safetensors.torch.save(tensors, metadata={_VALUES: values})


def read_state(data: bytes) -> tuple[PeerState, dict[str, int]]:
    """What `write_state` wrote."""
    size = int.from_bytes(data[:8], "little")
    values = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_VALUES])
    tensors: dict[str, Tensor] = safetensors.torch.load(data)
    return PeerState(tensors, values[STATE]), values[MANAGER]


class StateServer:
    """Serves the state of this replica to those that are behind, from the quorum that says so to the next update."""

    def __init__(self, *, host: str, timeout_seconds: float) -> None:
        self._host, self._timeout = host, timeout_seconds
        self._changed = threading.Condition()
        self._step, self._data = -1, b""
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = timeout_seconds

            def do_GET(self) -> None:
                data = server.wait_for(self.path.strip("/"))
                if not data:
                    self.send_error(404, "this step is not served")
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: requests are no events of the run."""

        self._server = ThreadingHTTPServer(("", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="state server", daemon=True)
        self._thread.start()

    def wait_for(self, step: str) -> bytes:
        """The file of a step; empty when it is not served within the timeout. Who is behind may ask first."""
        with self._changed:
            self._changed.wait_for(lambda: step == str(self._step) and self._data, self._timeout)
            return self._data if step == str(self._step) else b""

    def metadata(self) -> str:
        """Where others ask."""
        return f"http://{self._host}:{self._server.server_port}/"

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: dict[str, Any], timeout: timedelta) -> None:
        """Serve a copy of the state from now on. Called on another thread and stream than the update's."""
        for device in {tensor.device for tensor in state_dict[USER][STATE].tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)  # not the current one: a thread begins on the first
        data = write_state(state_dict[USER][STATE], state_dict[MANAGER])
        with self._changed:
            self._step, self._data = step, data
            self._changed.notify_all()

    def disallow_checkpoint(self) -> None:
        """The update is decided: whoever is still reading gets the rest of its copy, others have to ask again."""
        with self._changed:
            self._step, self._data = -1, b""

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> dict[str, Any]:
        """The state of another replica, in the form that the Manager expects."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{metadata}{step}", timeout=timeout.total_seconds()) as response:
            state, counts = read_state(response.read())
        return {USER: {STATE: state}, MANAGER: counts}

    def shutdown(self, wait: bool = True) -> None:
        """Serve nothing any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(self._timeout)
