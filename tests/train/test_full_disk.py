"""A disk that is full, broken or read-only ends no run: what it refused is written later, or named at the end."""

import errno
import os
import resource
import subprocess
import sys
from dataclasses import dataclass

import pytest

from monograph import strict_json
from monograph.cli import main
from monograph.log import find_missing, get_log, set_up_log, write_log_to
from monograph.train.checkpoint.disk import Disk
from monograph.train.config import MetricsConfig, ProfilerConfig
from monograph.train.write_failures import RetriedWrite
from tests.disks import FailingCalls
from tests.kit.runs import find_steps, open_trainer, tiny_run
from tests.train.processes import run

FULL = os.strerror(errno.ENOSPC)
STEPS = 40


@pytest.fixture
def small_disk(tmp_path):
    """A real disk of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", folder], capture_output=True)
    if made.returncode:
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder):
    with open(folder / "ballast", "ab", buffering=0) as file:
        try:
            while file.write(b"x" * 256):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC


def train_on(folder, *, full, changes=None):
    """Train 40 steps, so many that files need new pages; the disk is full from one step of `full` to the other."""
    settings = {"training.steps": STEPS, "checkpoint.enabled": False, "debug.log_level": "info"}
    lines = {"metrics.progress": "lines", "metrics.log_interval": 1}
    config = tiny_run(folder / "run", settings | lines | (changes or {}))
    with open_trainer(config) as trainer:
        set_up_log(level="info", holds=True)
        step = trainer._one_step

        def one_step(number, *rest):
            if number == full[0]:
                fill(folder)
            if number == full[1]:
                (folder / "ballast").unlink()
            step(number, *rest)

        trainer._one_step = one_step
        return trainer.train()


def parse(path):
    """Every line by a strict parser, so that no part of a line passes."""
    return [strict_json.parse(line) for line in path.read_bytes().split(b"\n")[:-1]]


def test_a_disk_that_is_full_for_a_while_costs_nothing(small_disk):
    summary = train_on(small_disk, full=(3, 36))
    assert summary.missing == [] and summary.steps == STEPS
    steps = [record["step"] for record in parse(small_disk / "run" / "metrics.jsonl")]
    assert steps == list(range(1, STEPS + 1))
    logged = (small_disk / "run" / "logs" / "rank-0.log").read_text()
    assert logged.count(f"/{STEPS}  loss ") == STEPS
    assert f"metrics.jsonl cannot be written ({FULL})" in logged and "metrics.jsonl is written again" in logged


def test_a_disk_that_stays_full_is_told_once_and_what_is_missing_at_the_end(small_disk, capsys):
    summary = train_on(small_disk, full=(3, 99))
    records = parse(small_disk / "run" / "metrics.jsonl")
    last = records[-1]["step"]
    assert 2 <= last < STEPS - 1 and [record["step"] for record in records] == list(range(1, last + 1))
    assert summary.missing[0] == f"metrics.jsonl lacks steps {last + 1}-{STEPS}: {FULL}"
    said = capsys.readouterr().err
    assert said.count("metrics.jsonl cannot be written") == 1 and summary.missing[0] in said


def test_a_config_that_found_no_room_is_written_when_there_is_some(small_disk):
    fill(small_disk)
    summary = train_on(small_disk, full=(1, 4))
    assert summary.missing == []
    assert strict_json.parse((small_disk / "run" / "config.json").read_bytes())


def test_a_trace_that_found_no_room_is_named_and_no_part_of_it_remains(small_disk):
    summary = train_on(small_disk, full=(2, 99), changes={"profiler.start": 3, "profiler.steps": 1})
    assert any(text.startswith("traces/steps-3-3-rank-0.json is missing: ") for text in summary.missing)
    traces = small_disk / "run" / "traces"
    assert not traces.exists() or os.listdir(traces) == []


@dataclass(frozen=True)
class SmallFiles:
    """No file of this process may become larger than this: what every user can have, without a small disk."""

    most_bytes: int

    def install(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.most_bytes, self.most_bytes))


def test_a_run_whose_files_may_not_grow_finishes_with_whole_lines(tmp_path):
    settings = {"training.steps": 30, "checkpoint.enabled": False, "debug.log_level": "info"}
    assert run(tiny_run(tmp_path, settings), SmallFiles(6000)) == 0
    steps = [record["step"] for record in parse(tmp_path / "metrics.jsonl")]
    assert 5 < len(steps) < 30 and steps == list(range(1, len(steps) + 1))
    logged = (tmp_path / "logs" / "rank-0.log").read_text()
    assert f"metrics.jsonl lacks steps {len(steps) + 1}-30: {os.strerror(errno.EFBIG)}" in logged


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_metrics_survive_every_error_of_a_disk(tmp_path, code):
    calls = FailingCalls("write", code=code)
    metrics = MetricsConfig().build(folder=tmp_path, run={}, calls=calls)
    metrics.start(0)
    metrics.write({"step": 1, "loss": 0.5})
    metrics.close()
    assert metrics.find_missing() == [f"metrics.jsonl lacks step 1: {os.strerror(code)}"]


def test_a_run_continues_on_a_full_disk_with_the_records_it_has(tmp_path, monkeypatch):
    """Dropping later records needs no space."""
    for after, steps in ((0, (1, 2, 3, 4)), (2, (3,))):
        metrics = MetricsConfig().build(folder=tmp_path, run={})
        if after:
            monkeypatch.setattr("monograph.train.records.write_whole", refuse)
        metrics.start(after)
        for step in steps:
            metrics.write({"step": step, "run": after})
        metrics.close()
    assert [(record["step"], record["run"]) for record in parse(tmp_path / "metrics.jsonl")] == [(1, 0), (2, 0), (3, 2)]


def refuse(*_, **__):
    raise OSError(errno.ENOSPC, FULL)


def test_records_that_cannot_be_continued_are_kept_beside_the_new_ones(tmp_path, monkeypatch, caplog):
    (tmp_path / "metrics.jsonl").write_text('{"step": 9}\n{"step": 1}\n')
    monkeypatch.setattr("monograph.train.records.write_whole", refuse)
    metrics = MetricsConfig().build(folder=tmp_path, run={})
    metrics.start(1)
    metrics.write({"step": 2})
    metrics.close()
    assert parse(tmp_path / "metrics.jsonl") == [{"step": 2}]
    assert (tmp_path / "metrics.jsonl.1").read_text() == '{"step": 9}\n{"step": 1}\n'


def test_a_log_file_that_cannot_be_written_loses_nothing_and_prints_no_traceback(tmp_path, capsys):
    path = tmp_path / "logs" / "rank-0.log"
    path.parent.write_text("in the way")
    try:
        set_up_log(holds=True)
        write_log_to(path)
        get_log().warning("first")
        assert find_missing()[0].startswith("logs/rank-0.log lacks 2 lines: ")
        path.parent.unlink()
        get_log().warning("second")
        assert find_missing() == []
    finally:
        set_up_log()
    lines = path.read_text().splitlines()
    assert [line[11:17] for line in lines] == ["first", "logs/r", "second"]
    said = capsys.readouterr().err
    assert said.count("logs/rank-0.log cannot be written") == 1 and "Traceback" not in said


class Flaky:
    """A sink that fails at some steps."""

    def __init__(self, failing):
        self.failing, self.seen = failing, []

    def write(self, step, values):
        if step in self.failing:
            raise RuntimeError("no network")
        self.seen.append(step)

    def close(self):
        raise RuntimeError("no network either")


def test_a_sink_that_fails_is_tried_again_and_what_it_lacks_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr("monograph.train.write_failures.RETRY_SECONDS", 0.0)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    sinks = []

    def make(*_):
        sinks.append(Flaky((2, 3)))
        return sinks[-1]

    monkeypatch.setattr("monograph.train.metrics.TensorBoardSink", make)
    metrics = MetricsConfig(tensorboard=True).build(folder=tmp_path, run={})
    metrics.start(0)
    for step in range(1, 6):
        metrics.write({"step": step, "loss": 0.5})
    metrics.close()
    assert [sink.seen for sink in sinks] == [[1], [], [4, 5]], "each failure opens it anew"
    assert metrics.find_missing() == ["tensorboard lacks steps 2-3: no network either"]
    assert [record["step"] for record in parse(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]


def test_a_sink_that_failed_is_left_alone_for_a_while():
    attempts, tried = RetriedWrite("sink", pause_seconds=1000.0), []

    def fail():
        tried.append(1)
        raise OSError(errno.ENOSPC, FULL)

    assert [attempts.attempt(step, fail) for step in (5, 6, 7)] == [False] * 3
    assert len(tried) == 1 and attempts.failures.describe() == f"sink lacks steps 5-7: {FULL}"


def test_a_trace_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "traces").write_text("in the way")
    profiler = ProfilerConfig(start=1, steps=1).build(folder=tmp_path / "traces")
    profiler.before_step(1)
    assert profiler.after_step(1)
    (text,) = profiler.find_missing()
    assert text.startswith("traces/steps-1-1-rank-0.json is missing: ")


def test_a_checkpoint_that_was_refused_on_the_way_is_named_at_the_end(tmp_path, monkeypatch):
    write, calls = Disk.write, []

    def fail_first(disk, file, data):
        calls.append(file)
        if len(calls) == 1:
            raise OSError(errno.ENOSPC, FULL)
        return write(disk, file, data)

    monkeypatch.setattr(Disk, "write", fail_first)
    with open_trainer(tiny_run(tmp_path, {"checkpoint.interval": 1, "training.steps": 3})) as trainer:
        summary = trainer.train()
    assert summary.missing == [f"the checkpoint of step 1 is missing: {FULL}"]
    assert find_steps(tmp_path) == [2, 3]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")
def test_a_full_disk_under_standard_output_is_an_error_without_a_traceback():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "monograph", "recipes"], stdout=full, stderr=-1, text=True)
    assert done.returncode == 1
    assert "cannot be written" in done.stderr and FULL in done.stderr and "Traceback" not in done.stderr


def test_the_summary_of_the_command_says_what_is_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("monograph.train.write_failures.write_whole", refuse)
    flags = ["--training.steps", "2", "--training.seq_len", "32", "--model.n_layers", "1", "--model.dim", "64"]
    assert main(["train", "llama3_debugmodel", *flags, "--job.dump_folder", str(tmp_path / "run")]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"missing config.json is missing: {FULL}" in out
