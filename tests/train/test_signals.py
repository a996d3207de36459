"""Asked to stop, a run finishes its step, saves, and leaves with a code that tells a scheduler to start it again."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

import monograph.run
from monograph.run import train
from monograph.train import signals
from monograph.train.checkpoint.manager import CheckpointManager
from monograph.train.signals import StoppedOnRequest, watch_for_stop
from tests.kit.runs import differing, find_steps, open_trainer, read_exact, read_records, read_step, tiny_run
from tests.train.processes import finish, run, start, start_command, wait_until

ROOT = Path(__file__).parent.parent.parent
ENDLESS = {"training.steps": 1_000_000, "lr_scheduler.decay": "constant", "checkpoint.interval": 0}
STOPPED = 75


class Running:
    """A real `monograph train`, started as a person would, seen like the other processes of these tests."""

    def __init__(self, folder):
        flags = [word for name, value in ENDLESS.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "monograph", "train", "tests.kit.runs:tiny", *flags]
        self.process = subprocess.Popen(
            [*command, "--job.dump_folder", str(folder)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )

    def is_alive(self):
        return self.process.poll() is None

    def kill(self):
        self.process.kill()

    @property
    def exitcode(self):
        return self.process.poll()


def last_step(folder):
    try:
        return read_records(folder)[-1]["step"]
    except (FileNotFoundError, IndexError, ValueError):
        return 0


def assert_stopped_whole_and_resumable(folder, other):
    """The checkpoint is of the last step that was done, and two steps more give what an unbroken run gives."""
    step = last_step(folder)
    assert find_steps(folder) == [step]
    assert not [path.name for path in (folder / "checkpoints").glob(".*") if path.name != ".lock"]
    more = ENDLESS | {"training.steps": step + 2}
    assert run(tiny_run(folder, more | {"checkpoint.load": "latest"}, model="deepseek_v3")) == 0
    assert run(tiny_run(other, more, model="deepseek_v3")) == 0
    assert read_exact(folder) == read_exact(other)
    assert differing(read_step(folder, step + 2), read_step(other, step + 2)) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_the_command_stops_between_two_steps_with_a_checkpoint_and_exit_code_75(tmp_path, number):
    running = Running(tmp_path / "run")
    wait_until(lambda: last_step(tmp_path / "run") >= 2, running)
    running.process.send_signal(number)
    _, said = running.process.communicate(timeout=60)
    assert running.exitcode == STOPPED
    step = last_step(tmp_path / "run")
    assert f"{number.name}: stopped after step {step}, with a checkpoint" in said
    assert "--checkpoint.load latest" in said and "Traceback" not in said
    assert_stopped_whole_and_resumable(tmp_path / "run", tmp_path / "unbroken")


def test_a_background_save_is_finished_before_leaving(tmp_path):
    words = ["train", "tests.kit.runs:tiny", "--job.dump_folder", str(tmp_path / "run")]
    flags = [word for name, value in ENDLESS.items() for word in (f"--{name}", str(value))]
    process = start_command(*words, *flags, "--checkpoint.async_save", "true")
    wait_until(lambda: last_step(tmp_path / "run") >= 2, process)
    os.kill(process.pid, signal.SIGUSR1)
    assert finish(process) == STOPPED
    assert_stopped_whole_and_resumable(tmp_path / "run", tmp_path / "unbroken")


def test_a_stop_at_a_step_that_was_saved_anyway_saves_it_once(tmp_path):
    changes = ENDLESS | {"checkpoint.interval": 1, "checkpoint.keep_last": 1, "debug.log_level": "info"}
    process = start(tiny_run(tmp_path / "run", changes))
    wait_until(lambda: last_step(tmp_path / "run") >= 2, process)
    os.kill(process.pid, signal.SIGTERM)
    finish(process)
    step = last_step(tmp_path / "run")
    log = (tmp_path / "run" / "logs" / "rank-0.log").read_text()
    assert log.count(f"step-{step:08d} in") == 1 and "is replaced" not in log


def test_a_stop_during_validation_ends_after_it_with_a_checkpoint_of_that_step(tmp_path):
    changes = ENDLESS | {"validator.interval": 2, "validator.samples": 2}
    with open_trainer(tiny_run(tmp_path, changes)) as trainer:
        validate = trainer.validator.run

        def stop_and_validate():
            os.kill(os.getpid(), signal.SIGTERM)
            return validate()

        trainer.validator.run = stop_and_validate
        with pytest.raises(StoppedOnRequest, match="stopped after step 2, with a checkpoint"):
            trainer.train()
    assert find_steps(tmp_path) == [2]
    assert "validation_loss" in read_records(tmp_path)[-1]


def test_without_checkpoints_a_stop_says_so(tmp_path):
    words = ["train", "tests.kit.runs:tiny", "--job.dump_folder", str(tmp_path), "--training.steps", "1000000"]
    process = start_command(*words, "--checkpoint.enabled", "false")
    wait_until(lambda: last_step(tmp_path) >= 2, process)
    os.kill(process.pid, signal.SIGTERM)
    assert finish(process) == STOPPED
    assert not (tmp_path / "checkpoints").exists()


@pytest.fixture
def usual_interrupt():
    """Python's own handling of SIGINT, which a background job of a shell starts without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(signals, "time", made := Clock())
    return made


def test_the_first_signal_is_noted_and_a_later_one_takes_its_ordinary_effect(usual_interrupt, clock):
    with pytest.raises(KeyboardInterrupt), watch_for_stop() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGINT)
        assert stop and stop.signal_name == "SIGINT"
        clock.now += signals.SAME_REQUEST_SECONDS
        os.kill(os.getpid(), signal.SIGINT)


def test_one_request_may_come_as_many_signals(clock):
    """A scheduler signals every process of a node, and the launcher passes on what it was told, sooner or later."""
    died = []
    before = signal.signal(signal.SIGTERM, lambda number, _: died.append(number))
    try:
        with watch_for_stop() as stop:
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                os.kill(os.getpid(), number)
                clock.now += 0.001
            clock.now += 60
            os.kill(os.getpid(), signal.SIGUSR1)
            assert stop.signal_name == "SIGTERM" and died == []
            os.kill(os.getpid(), signal.SIGTERM)
            assert died == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_request_whose_exception_python_drops_still_ends_the_start(monkeypatch):
    class Collected:
        """Asks while it is collected, which is where Python reports exceptions and goes on."""

        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)

    dropped = []
    monkeypatch.setattr(sys, "unraisablehook", dropped.append)
    stopped = pytest.raises(StoppedOnRequest, match="SIGINT: stopped before the first step")
    with stopped, watch_for_stop() as stop, stop.at_once():
        Collected()
        went_on = bool(stop)
    assert went_on and len(dropped) == 1


def test_a_watch_inside_of_another_knows_what_that_one_was_told():
    with watch_for_stop() as outer:
        os.kill(os.getpid(), signal.SIGUSR1)
        with watch_for_stop() as stop:
            assert stop is outer and stop.signal_name == "SIGUSR1"


def test_who_was_asked_to_stop_does_not_mind_a_terminal_that_closes_meanwhile():
    heard = []
    before = signal.signal(signal.SIGHUP, lambda number, _: heard.append(number))
    try:
        with watch_for_stop():
            os.kill(os.getpid(), signal.SIGHUP)
            assert heard == [signal.SIGHUP], "until then it has its ordinary effect"
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGHUP)
            assert heard == [signal.SIGHUP]
        os.kill(os.getpid(), signal.SIGHUP)
        assert heard == [signal.SIGHUP] * 2
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_are_watched_until_the_last_save_is_done(tmp_path, monkeypatch):
    """A save in the background may outlast the last step; a signal must not end it."""
    usual, seen, honest = signal.getsignal(signal.SIGTERM), [], CheckpointManager.__exit__

    def leave(self, *args):
        seen.append(signal.getsignal(signal.SIGTERM))
        return honest(self, *args)

    monkeypatch.setattr(CheckpointManager, "__exit__", leave)
    with open_trainer(tiny_run(tmp_path, {"training.steps": 1})) as trainer:
        trainer.train()
    assert len(seen) == 1 and seen[0] is not usual
    assert signal.getsignal(signal.SIGTERM) is usual


def test_handlers_are_put_back_whether_or_not_a_signal_came():
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    for wanted in (None, signal.SIGUSR1):
        with watch_for_stop() as stop:
            if wanted:
                os.kill(os.getpid(), wanted)
        assert bool(stop) == (wanted is not None)
        assert [signal.getsignal(number) for number in numbers] == before


def test_a_signal_whose_handler_could_not_be_put_back_is_left_alone(monkeypatch):
    known = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGUSR1 else known(number))
    before = known(signal.SIGUSR1)
    with watch_for_stop():
        assert known(signal.SIGUSR1) == before
        assert known(signal.SIGTERM) != signal.SIG_DFL


def test_outside_the_main_thread_nothing_is_watched_and_nothing_fails():
    seen = []

    def work():
        with watch_for_stop() as stop:
            seen.append(bool(stop))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_the_last_step_before_a_stop_is_in_the_metrics_even_where_numbers_are_read_late(tmp_path):
    with open_trainer(tiny_run(tmp_path, ENDLESS)) as trainer:
        trainer.meter.device = torch.device("cuda")  # where a step's numbers are read after the next was launched
        run_step, calls = trainer.step, []

        class Stopping:
            def __getattr__(self, name):
                return getattr(run_step, name)

            def accumulate(self, *args):
                calls.append(1)
                if len(calls) == 3:
                    os.kill(os.getpid(), signal.SIGUSR1)
                return run_step.accumulate(*args)

        trainer.step = Stopping()
        with pytest.raises(StoppedOnRequest, match="SIGUSR1: stopped after step 3"):
            trainer.train()
    assert [record["step"] for record in read_records(tmp_path)] == [1, 2, 3]
    assert find_steps(tmp_path) == [3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_stop_while_the_step_is_being_built_ends_at_once_with_code_75_and_no_files(tmp_path, number, monkeypatch):
    config = tiny_run(tmp_path / "run", {"compile.mode": "graph"})
    monkeypatch.setattr(monograph.run, "capture", lambda *_, **__: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    with pytest.raises(StoppedOnRequest, match=f"{number.name}: stopped before the first step"):
        train(config)
    assert StoppedOnRequest.exit_code == 75 and signal.getsignal(number) is before
    assert not (tmp_path / "run").exists()
