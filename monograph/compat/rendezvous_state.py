"""The state by which torch's agents meet, as JSON in their store, where torch keeps a pickle, which could run code.

Checked on 2.13.
"""

import json
import pickle
from datetime import datetime
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousBackend,
    Token,
    _NodeDesc,
    _RendezvousState,
)

from monograph.system.foreign_json import UnusableFile, parse_json

BACKEND = "monograph-c10d"
"""What torch's launcher calls a rendezvous with this state."""


class JsonState(RendezvousBackend):
    """A backend whose bytes are JSON to the store, and the pickle of a checked state, made here, to torch."""

    def __init__(self, backend: RendezvousBackend) -> None:
        self._backend = backend

    @property
    def name(self) -> str:
        return BACKEND

    def get_state(self) -> tuple[bytes, Token] | None:
        found = self._backend.get_state()
        return None if found is None else (pickle.dumps(parse_state(found[0])), found[1])

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        own = pickle.loads(state)  # torch in this process has just made it
        found = self._backend.set_state(write_state(own), token)
        return None if found is None else (pickle.dumps(parse_state(found[0])), *found[1:])


def write_state(state: Any) -> bytes:
    """A state as JSON; equal states give equal bytes, by which a backend sees whether a write has succeeded."""
    nodes = sorted({*state.participants, *state.wait_list, *state.redundancy_list, *state.last_heartbeats}, key=_order)
    places = {node: place for place, node in enumerate(nodes)}
    value = {
        "nodes": [[node.addr, node.pid, node.local_id] for node in nodes],
        "round": state.round,
        "complete": state.complete,
        "closed": state.closed,
        "deadline": state.deadline and state.deadline.isoformat(),
        "participants": sorted([places[node], rank] for node, rank in state.participants.items()),
        "wait_list": sorted(places[node] for node in state.wait_list),
        "redundancy_list": sorted(places[node] for node in state.redundancy_list),
        "last_heartbeats": sorted([places[node], at.isoformat()] for node, at in state.last_heartbeats.items()),
    }
    return json.dumps(value).encode()


def parse_state(data: bytes) -> Any:
    """The state that JSON describes; RendezvousStateError for anything else."""
    try:
        value = parse_json(data, "the rendezvous of the agents", kind=dict)
        nodes = [_NodeDesc(_read(addr, str), _read(pid, int), _read(own, int)) for addr, pid, own in value["nodes"]]
        state = _RendezvousState()
        state.round = _read(value["round"], int)
        state.complete, state.closed = _read(value["complete"], bool), _read(value["closed"], bool)
        state.deadline = value["deadline"] and _read_time(value["deadline"])
        state.participants = {nodes[place]: _read(rank, int) for place, rank in value["participants"]}
        state.wait_list = {nodes[place] for place in value["wait_list"]}
        state.redundancy_list = {nodes[place] for place in value["redundancy_list"]}
        state.last_heartbeats = {nodes[place]: _read_time(at) for place, at in value["last_heartbeats"]}
    except (UnusableFile, ValueError, TypeError, LookupError) as error:
        raise RendezvousStateError(f"the state in the agents' store is not one that an agent wrote: {error}") from None
    return state


def _order(node: _NodeDesc) -> tuple[str, int, int]:
    return node.addr, node.pid, node.local_id


def _read(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"expected {kind.__name__}, got {value!r}")
    return value


def _read_time(text: Any) -> datetime:
    at = datetime.fromisoformat(_read(text, str))
    if at.tzinfo is None:
        raise ValueError(f"expected a time with its zone, got {text!r}")
    return at
