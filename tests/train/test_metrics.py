"""metrics.jsonl holds exactly what was computed, and the other places get the same numbers."""

import json
import math
import sys

import pytest
import torch

from monograph import strict_json
from monograph.errors import ConfigError
from monograph.models.flops import FlopsPerToken
from monograph.run import train
from monograph.train.config import MetricsConfig
from monograph.train.measure import StepMeasurement, StepMeter
from monograph.train.trainer import TrainingFailed
from tests.kit.runs import read_records, tiny_run


def open_metrics(folder, *, after=0, is_writer=True, **settings):
    metrics = MetricsConfig(**settings).build(folder=folder, run={"a": 1}, is_writer=is_writer)
    metrics.start(after)
    return metrics


def write_steps(folder, *steps, after=0):
    metrics = open_metrics(folder, after=after)
    for step in steps:
        metrics.write({"step": step, "loss": step / 10})
    metrics.close()


def steps_in(folder):
    return [record["step"] for record in read_records(folder)]


@pytest.mark.parametrize("value", [0.1, 1 / 3, 3.4e38, 1e-45, 6.189459800720215])
def test_a_float32_comes_back_from_the_file_with_the_same_bits(tmp_path, value):
    exact = torch.tensor(value, dtype=torch.float32)
    meter = StepMeter(device=torch.device("cpu"), flops=FlopsPerToken(1, 1))
    metrics = open_metrics(tmp_path)
    for record in meter.add(StepMeasurement(step=1, loss=exact, grad_norm=exact, tokens=8)):
        metrics.write(record)
    metrics.close()
    (record,) = read_records(tmp_path)
    for name in ("loss", "grad_norm"):
        assert torch.tensor(record[name], dtype=torch.float32).view(torch.int32) == exact.view(torch.int32)
        assert record[name] == exact.item()


def test_every_step_of_a_run_has_one_line_with_all_its_numbers(tmp_path):
    train(tiny_run(tmp_path, {"metrics.log_interval": 100, "training.steps": 4}))
    records = read_records(tmp_path)
    assert [record["step"] for record in records] == [1, 2, 3, 4]
    names = {"loss", "grad_norm", "lr", "tokens", "cursor", "ms", "tokens_per_second", "peak_memory_gib"}
    for record in records:
        assert names <= {*record}
        assert record["loss"] == torch.tensor(record["loss"], dtype=torch.float32).item()
        assert record["tokens_per_second"] == pytest.approx(2 * 32 / (record["ms"] / 1000), rel=1e-9)
        assert record["peak_memory_gib"] > 0.05


def test_a_line_is_in_the_file_before_the_next_step_begins(tmp_path):
    metrics = open_metrics(tmp_path)
    metrics.write({"step": 1, "loss": 0.5})
    assert steps_in(tmp_path) == [1]
    metrics.close()


def test_resuming_drops_the_steps_that_are_done_again(tmp_path):
    write_steps(tmp_path, 1, 2, 3, 4)
    write_steps(tmp_path, 3, after=2)
    assert steps_in(tmp_path) == [1, 2, 3]


def test_a_line_cut_short_by_a_kill_is_dropped_and_the_lines_before_it_stay(tmp_path):
    write_steps(tmp_path, 1, 2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 3, "lo')
    write_steps(tmp_path, 3, after=2)
    assert steps_in(tmp_path) == [1, 2, 3]


def test_starting_over_keeps_the_earlier_file_beside_the_new_one(tmp_path):
    write_steps(tmp_path, 1, 2, 3)
    write_steps(tmp_path, 1)
    assert steps_in(tmp_path) == [1]
    kept = (tmp_path / "metrics.jsonl.1").read_text().splitlines()
    assert [json.loads(line)["step"] for line in kept] == [1, 2, 3]


def test_numbers_that_are_not_finite_are_null_and_named_beside_the_others(tmp_path):
    metrics = open_metrics(tmp_path)
    metrics.write({"step": 1, "loss": math.nan, "grad_norm": math.inf, "expert_load": {"entropy": [0.5, -math.inf]}})
    metrics.close()
    assert strict_json.parse((tmp_path / "metrics.jsonl").read_bytes()) == {
        "step": 1,
        "loss": None,
        "grad_norm": None,
        "expert_load": {"entropy": [0.5, None]},
        "non_finite": {"loss": "nan", "grad_norm": "inf", "expert_load/entropy/1": "-inf"},
    }
    (record,) = read_records(tmp_path)
    assert math.isnan(record.pop("loss"))
    assert record == {"step": 1, "grad_norm": math.inf, "expert_load": {"entropy": [0.5, -math.inf]}}


def test_every_line_of_a_run_that_went_bad_is_strict_json(tmp_path):
    wild = {"optimizer.lr": 1e30, "optimizer.weight_decay": 0.0, "lr_scheduler.warmup_steps": 0, "training.steps": 20}
    with pytest.raises(TrainingFailed):
        train(tiny_run(tmp_path, wild))
    records = [strict_json.parse(line) for line in (tmp_path / "metrics.jsonl").read_bytes().splitlines()]
    assert records[-1]["grad_norm"] is None and records[-1]["non_finite"]["grad_norm"] in ("nan", "inf")


def test_lines_with_a_bare_nan_become_strict_json_when_a_run_continues(tmp_path):
    write_steps(tmp_path, 1)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 2, "loss": NaN}\n{"step": 2, "validation_loss": 0.5}\n')
    write_steps(tmp_path, 3, after=2)
    records = [strict_json.parse(line) for line in path.read_bytes().splitlines()]
    assert [record["step"] for record in records] == [1, 2, 2, 3]
    assert records[1] == {"step": 2, "loss": None, "non_finite": {"loss": "nan"}}


@pytest.mark.parametrize(
    "rubbish",
    [b"5\n", b'{"loss": 1}\n', b'{"step": "x"}\n', b"\x00" * 50 + b"\n", b"\xff\xfe\n", b'{"step": true}\n'],
    ids=["a number", "no step", "a word for a step", "zeros after a power cut", "no UTF-8", "true for a step"],
)
def test_a_damaged_line_is_dropped_when_a_run_continues(tmp_path, rubbish):
    write_steps(tmp_path, 1, 2)
    path = tmp_path / "metrics.jsonl"
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + rubbish + second)
    write_steps(tmp_path, 3, after=2)
    assert steps_in(tmp_path) == [1, 2, 3]
    assert rubbish not in path.read_bytes()


def test_only_one_of_many_ranks_writes(tmp_path):
    metrics = open_metrics(tmp_path / "run", is_writer=False, tensorboard=True)
    metrics.write({"step": 1, "loss": 0.5})
    metrics.close()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("package", ["tensorboard", "wandb"])
def test_a_sink_whose_package_is_missing_is_refused_with_the_command_that_installs_it(tmp_path, monkeypatch, package):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError) as error:
        MetricsConfig(**{package: True}).build(folder=tmp_path, run={})
    assert f"metrics.{package}" in error.value.what
    assert f"[{package}]'" in error.value.do
    assert not (tmp_path / "metrics.jsonl").exists()


FAKE_WANDB = """
import json
class Run:
    def __init__(self, path): self.path = path
    def log(self, values, step): open(self.path, "a").write(json.dumps([step, values]) + "\\n")
    def finish(self): open(self.path, "a").write("finished\\n")
def init(dir, config, project, id, resume, allow_val_change):
    assert resume == "allow" and allow_val_change
    open(dir + "/ids", "a").write(id + "\\n")
    open(dir + "/sent", "w").write(json.dumps([config, project]) + "\\n")
    return Run(dir + "/sent")
"""


@pytest.fixture
def fake_wandb(tmp_path, monkeypatch):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "wandb.py").write_text(FAKE_WANDB)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield
    sys.modules.pop("wandb", None)


def test_weights_and_biases_gets_the_config_and_every_finite_number_under_a_path(tmp_path, fake_wandb):
    metrics = open_metrics(tmp_path, wandb=True)
    metrics.write({"step": 7, "loss": 0.5, "mfu": None, "lr": math.inf, "expert_load": {"entropy": [0.25, 1]}})
    metrics.close()
    metrics.close()
    assert (tmp_path / "sent").read_text().splitlines() == [
        json.dumps([{"a": 1}, "monograph"]),
        json.dumps([7, {"loss": 0.5, "expert_load/entropy/0": 0.25, "expert_load/entropy/1": 1.0}]),
        "finished",
    ]


def test_a_run_that_continues_is_one_run_of_weights_and_biases_and_one_that_goes_back_another(tmp_path, fake_wandb):
    for step, goes_back in ((0, False), (3, False), (6, False), (2, True), (4, False), (0, False)):
        metrics = MetricsConfig(wandb=True).build(folder=tmp_path, run={"a": 1})
        metrics.start(step, goes_back=goes_back)
        metrics.close()
    first, second, third, other, more, anew = (tmp_path / "ids").read_text().split()
    assert first == second == third and other == more
    assert len({first, other, anew}) == 3
    assert (tmp_path / "wandb_id.txt").read_text().strip() == anew


def test_the_id_of_a_run_of_weights_and_biases_that_its_user_set_is_kept(tmp_path, fake_wandb, monkeypatch):
    monkeypatch.setenv("WANDB_RUN_ID", "chosen")
    for step in (0, 3):
        metrics = MetricsConfig(wandb=True).build(folder=tmp_path, run={"a": 1})
        metrics.start(step, goes_back=False)
        metrics.close()
    assert (tmp_path / "ids").read_text().split() == ["chosen", "chosen"]
    assert not (tmp_path / "wandb_id.txt").exists()


@pytest.mark.parametrize("text", ["../other", "a b", "", "x" * 5000, "\x1b[2J"])
def test_an_odd_id_of_weights_and_biases_is_refused(tmp_path, fake_wandb, text):
    (tmp_path / "wandb_id.txt").write_text(text)
    metrics = MetricsConfig(wandb=True).build(folder=tmp_path, run={"a": 1})
    with pytest.raises(ConfigError, match=r"metrics\.wandb cannot be started"):
        metrics.start(3)


def test_tensorboard_shows_the_numbers_and_hides_steps_that_were_done_again(tmp_path):
    pytest.importorskip("tensorboard", reason="TensorBoard is an optional extra: see pyproject.toml")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for after, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        metrics = open_metrics(tmp_path, after=after, tensorboard=True)
        for step in steps:
            metrics.write({"step": step, "loss": step + after / 10})
        metrics.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("loss")]
    assert shown == [(step, pytest.approx(value)) for step, value in [(1, 1.0), (2, 2.0), (3, 3.2), (4, 4.2)]]
