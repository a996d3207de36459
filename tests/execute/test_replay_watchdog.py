"""The timeout of replayed CUDA graphs, with events that are no CUDA events."""

import signal
import subprocess
import sys

from monograph.execute.replay_watchdog import ReplayWatchdog

HANGING = """
import time
from monograph.execute.replay_watchdog import ReplayWatchdog

class Never:
    def query(self):
        return False

watchdog = ReplayWatchdog(timeout_seconds=0.1, rank=3)
watchdog._replays.append((time.monotonic(), Never()))
time.sleep(30)
"""


class Event:
    def __init__(self, is_done):
        self.is_done = is_done

    def query(self):
        return self.is_done


def test_only_the_oldest_replay_that_still_runs_can_be_late():
    watchdog = ReplayWatchdog(timeout_seconds=10, rank=0)
    watchdog.close()
    done, first, second = Event(True), Event(False), Event(False)
    watchdog._replays.extend([(0.0, done), (5.0, first), (12.0, second)])
    assert not watchdog.is_late(15.0)
    assert watchdog.is_late(15.1)
    first.is_done = True
    assert not watchdog.is_late(22.0) and watchdog.is_late(22.1)
    second.is_done = True
    assert not watchdog.is_late(1000.0)


def test_a_replay_that_does_not_end_ends_the_process_with_a_reason_and_all_stacks():
    ended = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == -signal.SIGABRT
    assert "rank 3: a replayed step did not finish within 0 s" in ended.stderr
    assert "parallelism.timeout_seconds" in ended.stderr and "most recent call first" in ended.stderr
