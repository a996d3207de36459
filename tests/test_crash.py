"""How a process died, in words; and the stacks it leaves behind."""

import signal
import subprocess
import sys

import pytest

from monograph.crash import MAX_LINES, describe_exit, find_reason


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (1, "ended with exit code 1"),
        (-6, "was killed by SIGABRT (exit code -6)"),
        (-9, "was killed by SIGKILL (exit code -9)"),
        (-63, "was killed by signal 63 (exit code -63)"),
    ],
)
def test_an_exit_code_is_given_with_the_name_of_its_signal(code, said):
    assert describe_exit(code) == said


def test_the_reason_in_a_log_is_its_last_traceback_or_fatal_error_with_what_came_before_it():
    noise = [f"line {number}" for number in range(100)]
    assert find_reason(noise) == noise[-MAX_LINES:]
    raised = ["Traceback (most recent call last):", "  File x", "ValueError: no"]
    assert find_reason([*noise, *raised]) == raised
    said = ["terminate called after throwing an instance of 'gloo::IoException'"]
    died = ["Fatal Python error: Aborted", "", "Current thread 0x1 (most recent call first):", "  File y"]
    found = find_reason([*raised, *noise, *said, *died])
    assert found[-5:] == [*said, *died] and len(found) == 15 + len(died)


def test_a_long_reason_is_shown_by_its_beginning_and_its_end():
    found = find_reason(["Traceback (most recent call last):", *map(str, range(500)), "ValueError: no"])
    assert len(found) == MAX_LINES + 1
    assert found[0].startswith("Traceback") and "..." in found and found[-1] == "ValueError: no"


def test_a_process_that_crashes_prints_the_stacks_of_all_its_threads(tmp_path):
    script = """
import os, threading, time
from monograph.crash import print_stacks_on_crash
print_stacks_on_crash()
def wait_elsewhere(): time.sleep(60)
threading.Thread(target=wait_elsewhere, daemon=True).start()
time.sleep(0.2)
os.abort()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in done.stderr and "wait_elsewhere" in done.stderr


def test_a_process_without_a_standard_error_to_write_to_runs_all_the_same(tmp_path):
    script = """
import io, sys
from monograph.crash import print_stacks_on_crash
for other in (None, io.StringIO()):
    sys.stderr = other
    print_stacks_on_crash()
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path)
