"""How an agent stops its ranks: as long as they need where they can save, once, and asked in a way that never kills."""

import inspect
import os
import signal
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.api import SignalException

from monograph.compat.elastic import patient_agent
from monograph.launch import agent, stop_signals
from monograph.launch.environment import STOP_VARIABLE

WORDS = ("--nnodes", "1:2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-endpoint", "here:1", "x.py")


HAS_LIMITS = "timeout" in inspect.signature(LocalElasticAgent._shutdown).parameters
"""Whether this torch hands over how long to wait; 2.11 does not."""


class Ranks:
    """The processes of a node, to torch's agent."""

    def __init__(self):
        self.limits = []

    def close(self, death_sig, timeout):
        self.limits.append(timeout)


def make_agent(*, left):
    """The agent of two nodes, of which so many have left."""
    holder = SimpleNamespace(state=SimpleNamespace(participants=dict.fromkeys(["a", "b"][: 2 - left])))
    spec = WorkerSpec("trainer", 1, SimpleNamespace(_state_holder=holder), entrypoint="true", master_port=1)
    made = LocalElasticAgent(spec, DefaultLogsSpecs())
    made._worker_group.group_world_size = 2
    return made


def stop_ranks(*, left):
    """How long it gives its ranks to end, when one of the nodes has left or another one joins."""
    made = make_agent(left=left)
    made._pcontext = ranks = Ranks()
    made._stop_workers(made._worker_group)
    made._pcontext = asked = Ranks()
    made._shutdown(signal.SIGUSR1, **({"timeout": 30} if HAS_LIMITS else {}))
    return ranks.limits + asked.limits


@pytest.fixture
def stopped(monkeypatch):
    """What `main` runs instead of torch's launcher."""
    monkeypatch.delenv(STOP_VARIABLE, raising=False)
    found = {}

    def launch(config, _command):
        def run(*_words):
            found["config"] = config
            found["limits"] = [stop_ranks(left=left) for left in (0, 1)]

        return run

    monkeypatch.setattr(agent, "elastic_launch", launch)
    return found


def test_ranks_that_make_room_for_a_new_node_may_save_as_long_as_the_job_says(stopped, monkeypatch):
    monkeypatch.setenv(STOP_VARIABLE, "900")
    assert agent.main(WORDS) == 0
    assert stopped["limits"] == [[900, 900], [30, 900]], "and those whose peers are gone are not waited for"
    assert stopped["config"].rdzv_configs["join_timeout"] > 900, "the new node waits as long"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_an_agent_asks_its_ranks_once_and_with_a_signal_that_never_kills(number):
    with stop_signals.passed_on() as heard:
        with pytest.raises(SignalException) as asked:
            os.kill(os.getpid(), number)
        assert asked.value.sigval == signal.SIGUSR1 and heard == [number.name]
        for again in (number, signal.SIGTERM):
            os.kill(os.getpid(), again)
        assert heard == [number.name]


def test_asking_an_agent_again_later_ends_its_ranks_at_once(monkeypatch):
    with stop_signals.passed_on():
        with pytest.raises(SignalException):
            os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.setattr(stop_signals, "SAME_REQUEST_SECONDS", 0.0)
        with pytest.raises(SignalException) as asked:
            os.kill(os.getpid(), signal.SIGTERM)
        assert asked.value.sigval == signal.SIGTERM


def test_what_an_earlier_attempt_failed_of_does_not_count_when_an_agent_is_asked_to_stop(tmp_path):
    """A job that has recovered is started again by its scheduler after its time limit."""
    for attempt, text in ((0, "Connection closed"), (1, "StoppedOnRequest"), (10, "StoppedOnRequest")):
        note = tmp_path / "run" / f"attempt_{attempt}" / "0" / "error.json"
        note.parent.mkdir(parents=True)
        note.write_text(text)
    notes = agent.find_last_notes(tmp_path, since=0)
    assert [path.parts[-3] for path in notes] == ["attempt_10"] and all(map(agent.is_of_a_stop, notes))


@pytest.mark.parametrize(
    ("left", "number", "limit"), [(0, signal.SIGTERM, 900), (1, signal.SIGTERM, 30), (1, signal.SIGUSR1, 900)]
)
def test_ranks_whose_peers_are_gone_are_waited_for_only_when_someone_asked_them_to_save(left, number, limit):
    with patient_agent(900):
        made = make_agent(left=left)
        made._pcontext = ranks = Ranks()
        made._shutdown(number, **({"timeout": 30} if HAS_LIMITS else {}))
    assert ranks.limits == [limit]
