"""The timeout of replayed CUDA graphs, with events that are no CUDA events."""

import signal
import subprocess
import sys
from unittest import mock

import torch

from monograph.execute.replay_watchdog import MOST_AHEAD, LaunchedReplay, ReplayWatchdog

CPU = torch.device("cpu")

HANGING = """
import time
import torch
from monograph.execute.replay_watchdog import LaunchedReplay, ReplayWatchdog

class Event:
    def __init__(self, is_done):
        self.is_done = is_done

    def query(self):
        return self.is_done

watchdog = ReplayWatchdog(timeout_seconds=0.1, rank=3, device=torch.device('cpu'))
watchdog._replays.append(LaunchedReplay(Event(True), Event(False)))
time.sleep(30)
"""


class Event:
    def __init__(self, is_done):
        self.is_done = is_done

    def query(self):
        return self.is_done


class ArtificialDevice:
    """Runs replays one after the other, each for so many seconds, on a clock that the test moves."""

    def __init__(self, watchdog, seconds):
        self.now = 0.0
        begins = [sum(seconds[:number]) for number in range(len(seconds))]
        for begin, length in zip(begins, seconds, strict=True):
            watchdog._replays.append(LaunchedReplay(self.event(begin), self.event(begin + length)))

    def move(self, now):
        self.now = now
        return now

    def event(self, moment):
        event = Event(False)
        event.query = lambda: self.now >= moment
        return event


def is_ever_late(seconds, *, until):
    """Whether a watchdog with a limit of 300 s ends a run whose replays, launched at once, take so long."""
    watchdog = ReplayWatchdog(timeout_seconds=300, rank=0, device=CPU)
    watchdog.close()
    device = ArtificialDevice(watchdog, seconds)
    return any(watchdog.is_late(device.move(now)) for now in range(until))


def test_a_healthy_update_may_take_longer_than_the_timeout_of_one_replay():
    assert not is_ever_late([30] * 64, until=2000)
    assert not is_ever_late([299, 299, 299], until=1000)


def test_a_replay_is_late_when_it_runs_longer_than_the_timeout():
    assert is_ever_late([30, 30, 302], until=400)
    assert not is_ever_late([30, 30, 302], until=360)
    assert is_ever_late([float("inf")], until=302) and not is_ever_late([float("inf")], until=301)


def test_a_replay_that_the_device_has_not_reached_is_not_late():
    watchdog = ReplayWatchdog(timeout_seconds=300, rank=0, device=CPU)
    watchdog.close()
    watchdog._replays.append(LaunchedReplay(Event(False), Event(False)))
    assert not watchdog.is_late(0.0) and not watchdog.is_late(10_000.0)


def test_the_host_is_never_more_than_two_replays_ahead_of_the_device():
    """Else a collective that is launched behind them uses up its timeout before its turn."""
    made = []

    def make_event(blocking=False):
        event = mock.Mock(is_waited_for=False)
        event.synchronize.side_effect = lambda: setattr(event, "is_waited_for", True)
        made.append(event)
        return event

    with mock.patch("torch.cuda.Event", make_event), mock.patch("torch.cuda.current_stream", lambda *_: None):
        watchdog = ReplayWatchdog(timeout_seconds=10, rank=0, device=CPU)
        for _ in range(5):
            with watchdog.watched():
                assert len([end for end in made[1::2] if not end.is_waited_for]) <= MOST_AHEAD
        watchdog.close()
    assert [end.is_waited_for for end in made[1::2]] == [True, True, True, False, False]


def test_a_replay_that_does_not_end_ends_the_process_with_a_reason_and_all_stacks():
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGABRT
    assert "rank 3: a replayed step did not finish within 0 s" in ended.stderr
    assert "parallelism.timeout_seconds" in ended.stderr and "most recent call first" in ended.stderr
