"""Agents of several nodes: their store holds JSON, listens on one address, and the ranks' store does as well."""

import base64
import json
import os
import pickle
import socket
from datetime import UTC, datetime, timedelta
from functools import partial
from threading import Timer

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import RendezvousParameters, RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import _NodeDesc, _RendezvousState
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

from monograph.compat.rendezvous_state import BACKEND, JsonState, parse_state, write_state
from monograph.errors import ConfigError, MonographError
from monograph.launch import agent, agent_rendezvous
from monograph.launch.agent_rendezvous import find_own_address
from monograph.parallel.meeting import OWN_ADDRESS_VARIABLE, STORE_VARIABLE
from tests.kit.paced import find_processes
from tests.launch.agents import Agents, find_port
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
    with agent_rendezvous.agent_rendezvous("::1:29500", None) as settings:
        assert settings == {"rdzv_backend": "monograph-c10d"}


def test_a_port_that_another_program_holds_and_is_silent_at_ends_the_wait_in_words(monkeypatch):
    monkeypatch.setattr(agent_rendezvous, "SECONDS_TO_MEET", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"localhost:{silent.getsockname()[1]}"
        monkeypatch.setenv(OWN_ADDRESS_VARIABLE, "127.0.0.1")
        with pytest.raises(MonographError, match=f"no agent of the first node at {endpoint}") as raised:
            get_rendezvous_handler(RendezvousParameters(BACKEND, endpoint, "job", 2, 2))
    assert "nothing has answered as a store does for 1 s" in raised.value.why


def test_the_first_node_may_start_later_than_a_store_answers(monkeypatch):
    monkeypatch.setattr(agent_rendezvous, "_READ_SECONDS", 0.2)
    monkeypatch.setattr(agent_rendezvous, "listen_on", lambda *_: (_ for _ in ()).throw(OSError()))
    port = find_port()
    stores = []
    serve = partial(dist.TCPStore, "127.0.0.1", port, is_master=True, wait_for_workers=False)
    Timer(2.5, lambda: stores.append(serve())).start()
    store = agent_rendezvous.open_store("127.0.0.1", f"localhost:{port}")
    assert store.add("x", 1) == 1 and store.timeout == timedelta(seconds=0.2)


def test_agents_say_in_words_what_is_wrong_with_their_endpoint_or_interface(monkeypatch, capsys):
    """An empty name is what a shell makes of a node list that it could not read."""
    words = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", ":29500", "x.py"]
    assert agent.main(words) == 2
    assert "--rdzv-endpoint is :29500" in capsys.readouterr().err
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "no-such-0")
    words[5] = "localhost:29500"
    assert agent.main(words) == 2
    assert "GLOO_SOCKET_IFNAME is no-such-0" in capsys.readouterr().err


def test_agents_drop_what_ranks_of_another_job_were_told(monkeypatch):
    names = (STORE_VARIABLE, OWN_ADDRESS_VARIABLE)
    found = []
    for name in names:
        monkeypatch.setenv(name, "/of/another/job")
    monkeypatch.setattr(agent, "elastic_launch", lambda *_: lambda *_: found.append(set(names) & set(os.environ)))
    assert agent.main(["--nnodes", "1", "--rdzv-backend", "static", "x.py"]) == 0
    assert found == [set()]


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
