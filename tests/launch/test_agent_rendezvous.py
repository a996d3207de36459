"""Agents of several nodes: their store holds JSON, listens on one address, and the ranks' store does as well."""

import base64
import json
import pickle
import socket
from datetime import UTC, datetime, timedelta

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState

from monograph.compat.rendezvous_state import JsonState, parse_state, write_state
from monograph.errors import ConfigError
from monograph.launch.agent_rendezvous import agent_rendezvous, find_own_address
from tests.kit.paced import find_processes
from tests.launch.agents import Agents
from tests.launch.test_strangers import Evil, find_listening, find_stores


def make_state():
    nodes = [_NodeDesc(f"node{place}", 100 + place, place) for place in range(3)]
    state = _RendezvousState()
    state.round, state.complete, state.deadline = 2, True, datetime.now(UTC)
    state.participants = {nodes[1]: 0, nodes[0]: 1}
    state.wait_list, state.redundancy_list = {nodes[2]}, {nodes[0]}
    state.last_heartbeats = dict.fromkeys(nodes, datetime.now(UTC) - timedelta(seconds=3))
    return state


def test_a_state_comes_back_from_json_with_equal_bytes_for_equal_states():
    state = make_state()
    again = parse_state(write_state(state))
    assert vars(again) == vars(state)
    assert write_state(again) == write_state(state)
    assert vars(parse_state(write_state(_RendezvousState()))) == vars(_RendezvousState())


def test_pickles_of_others_in_the_store_of_agents_never_run(tmp_path):
    store = dist.HashStore()
    backend = JsonState(C10dRendezvousBackend(store, "job"))
    _, token, has_set = backend.set_state(pickle.dumps(make_state()), None)
    assert has_set and b'"participants"' in base64.b64decode(store.get("torch.rendezvous.job"))
    assert backend.set_state(pickle.dumps(_RendezvousState()), token)[2]
    store.set("torch.rendezvous.job", base64.b64encode(pickle.dumps(Evil(tmp_path / "mark"))))
    with pytest.raises(RendezvousStateError, match="not one that an agent wrote"):
        backend.get_state()
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"round": "2"},
        {"round": True},
        {"nodes": [["a", 1]]},
        {"participants": [[7, 0]]},
        {"deadline": "2026-01-01T00:00:00"},
        {"last_heartbeats": [[0, 3]]},
        {"wait_list": None},
    ],
    ids=str,
)
def test_a_state_of_another_form_is_refused(change):
    value = json.loads(write_state(make_state())) | change
    with pytest.raises(RendezvousStateError):
        parse_state(json.dumps(value).encode())


def test_an_interface_that_does_not_exist_is_refused_with_those_that_do(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-0")
    with pytest.raises(ConfigError, match="GLOO_SOCKET_IFNAME is no-such-0"):
        find_own_address("localhost", 29500)


def test_without_one_address_the_agents_meet_as_before_and_say_so(monkeypatch, caplog):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: (_ for _ in ()).throw(OSError()))
    with agent_rendezvous("::1:29500", None) as settings:
        assert settings == {"rdzv_backend": "monograph-c10d"}


@pytest.mark.faults
def test_agents_listen_on_one_address_and_run_nothing_that_lies_in_their_store(tmp_path):
    job = Agents(tmp_path / "job" / "run", flags={"training.steps": 100000, "model.pause_seconds": 0.05})
    try:
        for name in ("a", "b"):
            job.start(name, 1)
        job.wait_for_step(2)
        listening = find_listening(find_processes(str(job.folder)))
        assert {address for address, _ in listening} == {"127.0.0.1"}
        stores = find_stores([port for _, port in listening], tmp_path / "mark")
        assert len(stores) == 2, "the agents' and the ranks'"
        assert 0 not in job.finish(120).values(), "who reaches the network of a job can stop it"
        assert "not one that an agent wrote" in job.read_output()
        assert not (tmp_path / "mark").exists()
    finally:
        job.close()
