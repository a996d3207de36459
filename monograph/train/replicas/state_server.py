"""Sends the state of a replica to those that are behind: as a safetensors file over HTTP.

torchft would send a pickle, which can run code where it is read. Here only tensors and plain JSON are sent. The
methods with torchft's names are those that its Manager calls on a checkpoint transport.

The path of a state holds a secret, which the quorum hands to the other replicas: reaching the port is not enough to
read the weights. What is received is bounded by the size of the own state and in time, and its values are checked.
"""

import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from monograph import strict_json
from monograph.system.bounded_server import BoundedHandler, BoundedServer
from monograph.system.foreign_json import parse_json
from monograph.train.replicas.fetch import NotServedYet, fetch
from monograph.train.replicas.peer_state import PeerState, StateMismatch

_VALUES = "values"
USER, MANAGER = "user", "torchft"
"""The parts of a state as the Manager hands it over: by the name it was registered with, and its own counts."""
STATE = "run"
"""The name of what is sent."""
_MAX_HEADER_BYTES = 64 << 20
"""Names, shapes and values beside the tensors; far more than any model has."""
_REQUEST_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
"""Between two requests for a state that is not served yet."""


def write_state(state: PeerState, counts: dict[str, int]) -> bytes:
    """A safetensors file with everything."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors.items()}
    values = strict_json.dump({STATE: state.values, MANAGER: counts})
    return safetensors.torch.save(tensors, metadata={_VALUES: values})


def read_state(data: bytes) -> tuple[PeerState, dict[str, int]]:
    """Content of a file that `write_state` wrote; StateMismatch for anything else."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = parse_json(data[8 : 8 + min(size, _MAX_HEADER_BYTES)], "its header", kind=dict)
        values = parse_json(str(header["__metadata__"][_VALUES]), "its values", kind=dict)
        state, counts = values[STATE], values[MANAGER]
        tensors: dict[str, Tensor] = safetensors.torch.load(data)
    except (ValueError, LookupError, TypeError, safetensors.SafetensorError) as error:
        raise _refuse(f"it cannot be read: {error}") from None
    if not isinstance(state, dict) or not isinstance(counts, dict):
        raise _refuse("its values are not objects")
    return PeerState(tensors, state), counts


def check_received(state: PeerState, counts: dict[str, int], *, step: int) -> None:
    """Raise StateMismatch unless a state is that of `step`, with counts that a run can have."""
    for name, value in (("step", state.values.get("step")), ("torchft's step", counts.get("step"))):
        if type(value) is not int or value != step:
            raise _refuse(f"its {name} is {value!r}, and the quorum is at step {step}")
    cursor = state.values.get("cursor")
    places = [cursor.get(name) if isinstance(cursor, dict) else None for name in ("epoch", "sample")]
    numbers = [state.values.get("tokens"), counts.get("batches_committed"), *places]
    if not all(type(value) is int and 0 <= value < 1 << 62 for value in numbers):
        raise _refuse(f"its counts (tokens, updates, cursor) are {numbers!r}")
    for name in ("data", "lr_plan"):
        if not isinstance(state.values.get(name), dict):
            raise _refuse(f"it has no {name}")


class StateServer:
    """Serves the state of this replica to those that are behind, from the quorum that says so to the next update."""

    def __init__(
        self,
        *,
        address: tuple[Any, ...],
        family: socket.AddressFamily = socket.AF_INET,
        timeout_seconds: float,
        max_readers: int,
        collect_own: Callable[[], PeerState],
    ) -> None:
        self._timeout, self._collect_own = timeout_seconds, collect_own
        self._changing = threading.Lock()
        self._step, self._data = -1, b""
        state_server = self

        class Handler(BoundedHandler):
            def answer(self, asked: str) -> None:
                data = state_server.find(asked)
                if data:
                    self.send_content(data)
                else:
                    self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, "this step is not served")

        self._server = BoundedServer(
            (address[0], 0, *address[2:]),
            Handler,
            family=family,
            max_connections=max_readers,
            request_seconds=min(_REQUEST_SECONDS, timeout_seconds),
            answer_seconds=timeout_seconds,
        )
        self._thread = threading.Thread(target=self._server.serve_forever, name="state server", daemon=True)
        self._thread.start()

    def find(self, step: str) -> bytes:
        """The file of a step; empty while it is not served."""
        with self._changing:
            return self._data if step == str(self._step) else b""

    def metadata(self) -> str:
        """The address of all states, with its secret; the quorum hands it to the other replicas."""
        host = self._server.server_name
        return f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}/{self._server.token}/"

    def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: dict[str, Any], timeout: timedelta) -> None:
        """Serve a copy of the state from now on. Called on another thread and stream than the update's."""
        for device in {tensor.device for tensor in state_dict[USER][STATE].tensors.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)  # not the current one: a thread begins on the first
        data = write_state(state_dict[USER][STATE], state_dict[MANAGER])
        with self._changing:
            self._step, self._data = step, data

    def disallow_checkpoint(self) -> None:
        """The update is decided: whoever is still reading gets the rest of its copy, others have to ask again."""
        with self._changing:
            self._step, self._data = -1, b""

    def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> dict[str, Any]:
        """The state of another replica, in the form that the Manager expects. It may not be served yet."""
        own = sum(tensor.nbytes for tensor in self._collect_own().tensors.values())
        deadline = time.monotonic() + timeout.total_seconds()
        while True:
            try:
                data = fetch(f"{metadata}{step}", max_bytes=own + _MAX_HEADER_BYTES, deadline=deadline)
                break
            except NotServedYet:
                if time.monotonic() + _PAUSE_SECONDS > deadline:
                    raise
                time.sleep(_PAUSE_SECONDS)
        state, counts = read_state(data)
        check_received(state, counts, step=step)
        return {USER: {STATE: state}, MANAGER: counts}

    def shutdown(self, wait: bool = True) -> None:
        """Serve nothing any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(self._timeout)


def _refuse(why: str) -> StateMismatch:
    return StateMismatch("the state that another replica sent is not taken over", why=why)
