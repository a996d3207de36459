"""Numbers that go bad end the run before they reach a weight or a checkpoint."""

import math
import os

import pytest
import torch

from monograph.cli import main
from monograph.execute.device import deterministic_kernels
from monograph.run import train
from monograph.train.trainer import TrainingFailed
from tests.kit.runs import Watched, differing, find_steps, open_trainer, read_records, read_step, tiny_run, watched_run
from tests.train.clocks import SimulatedDevice


class Poisoned:
    """A step whose results go bad at one update; everything else is the step it wraps."""

    def __init__(self, step, *, at, spoil):
        self.__dict__.update(_step=step, _at=at, _spoil=spoil, _calls=0)

    def __getattr__(self, name):
        return getattr(self._step, name)

    def accumulate(self, batches, scalars):
        self.__dict__["_calls"] += 1
        if self._calls != self._at:
            return self._step.accumulate(batches, scalars)
        return self._spoil(self._step, lambda: self._step.accumulate(batches, scalars))


def spoil_one_gradient(step, accumulate):
    loss = accumulate()
    step.parameters["layers.1.attention.wo.weight"].grad[0, 0] = float("nan")
    return loss


def spoil_the_loss(step, accumulate):
    return accumulate() * float("inf")


def spoil_an_activation(step, accumulate):
    block = step.model.get_submodule("layers.1.feed_forward")
    hook = block.register_forward_hook(lambda _module, _inputs, output: output * float("nan"))
    try:
        return accumulate()
    finally:
        hook.remove()


@pytest.mark.parametrize(
    ("implementation", "spoil"),
    [
        ("fused", spoil_one_gradient),
        ("foreach", spoil_the_loss),
        ("for_loop", spoil_an_activation),
        pytest.param("for_loop", spoil_one_gradient, marks=pytest.mark.long),
        pytest.param("fused", spoil_the_loss, marks=pytest.mark.long),
        pytest.param("foreach", spoil_one_gradient, marks=pytest.mark.long),
        pytest.param("for_loop", spoil_the_loss, marks=pytest.mark.long),
    ],
)
def test_a_bad_number_stops_the_run_at_its_step_with_all_weights_as_they_were(tmp_path, implementation, spoil):
    settings = {"optimizer.implementation": implementation, "training.steps": 6, "checkpoint.interval": 1}
    with open_trainer(tiny_run(tmp_path, settings | {"checkpoint.keep_last": 0})) as trainer:
        trainer.step = Poisoned(trainer.step, at=3, spoil=spoil)
        with pytest.raises(TrainingFailed, match=r"^step 3: loss .*, gradient norm ") as error:
            trainer.train()
        now = {f"model/{name}": value.detach() for name, value in trainer.step.parameters.items()}
        now |= {f"optimizer/{kind}/{name}": value for (kind, name), value in trainer.optimizer.state().items()}
    assert find_steps(tmp_path) == [1, 2]
    kept = {name: value for name, value in read_step(tmp_path, 2).items() if name in now}
    assert differing(now, kept) == []
    assert "not applied" in error.value.why and "optimizer.lr" in error.value.do
    last = read_records(tmp_path)[-1]
    assert last["step"] == 3 and not (math.isfinite(last["loss"]) and math.isfinite(last["grad_norm"]))


def test_a_rate_far_too_high_ends_the_command_with_exit_code_one_and_no_traceback(tmp_path, capsys):
    flags = ["--training.steps", "20", "--training.seq_len", "32", "--training.local_batch_size", "1"]
    small = ["--model.n_layers", "1", "--model.dim", "64", "--validator.interval", "0", "--debug.device", "cpu"]
    wild = [
        "--optimizer.lr",
        "1e30",
        "--optimizer.weight_decay",
        "0",
        "--lr_scheduler.warmup_steps",
        "0",
        "--job.dump_folder",
        str(tmp_path),
    ]
    assert main(["train", "llama3_debugmodel", *flags, *small, *wild]) == 1
    said = capsys.readouterr().err
    assert "step 2: loss" in said and "samples before epoch 0, sample 2" in said and "Traceback" not in said
    assert find_steps(tmp_path) == []


def test_files_are_closed_and_handlers_are_back_after_a_failure(tmp_path):
    with open_trainer(tiny_run(tmp_path)) as trainer:
        trainer.step = Poisoned(trainer.step, at=2, spoil=spoil_the_loss)
        with pytest.raises(TrainingFailed):
            trainer.train()
    train(tiny_run(tmp_path, {"checkpoint.load": "auto"}))
    assert find_steps(tmp_path) == [3]


def test_a_bad_last_step_is_not_saved_even_when_it_is_read_late(tmp_path):
    with open_trainer(tiny_run(tmp_path, {"training.steps": 3})) as trainer:
        trainer.step = Poisoned(trainer.step, at=3, spoil=spoil_the_loss)
        trainer.meter.clock = SimulatedDevice()  # a step's numbers are read after the next was launched
        with pytest.raises(TrainingFailed, match="step 3"):
            trainer.train()
    assert find_steps(tmp_path) == []


def is_deterministic():
    return torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory


def test_deterministic_mode_is_on_inside_the_run_and_torchs_settings_come_back(tmp_path):
    before = is_deterministic()
    train(watched_run(tmp_path / "on", {"debug.deterministic": True}))
    assert {seen["deterministic"] for seen in Watched.seen} == {True}
    assert is_deterministic() == before
    train(watched_run(tmp_path / "off"))
    assert {seen["deterministic"] for seen in Watched.seen} == {False}


@pytest.mark.parametrize("workspace", [None, ":16:8"])
def test_torchs_settings_come_back_after_an_error_too(monkeypatch, workspace):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    if workspace:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", workspace)
    torch.use_deterministic_algorithms(False)
    before = is_deterministic()
    with pytest.raises(ValueError, match="broken"), deterministic_kernels(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == (workspace or ":4096:8")
        raise ValueError("broken")
    assert is_deterministic() == before
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") == workspace


def test_two_runs_of_one_config_give_the_same_bits(tmp_path):
    for name in ("one", "two"):
        train(tiny_run(tmp_path / name, {"debug.deterministic": True}, model="deepseek_v3"))
    assert differing(read_step(tmp_path / "one", 3), read_step(tmp_path / "two", 3)) == []


def test_another_seed_gives_other_weights_and_other_data(tmp_path):
    for seed in (1, 2):
        train(tiny_run(tmp_path / str(seed), {"debug.seed": seed, "training.steps": 1}))
    assert read_records(tmp_path / "1")[0]["loss"] != read_records(tmp_path / "2")[0]["loss"]
    changed = differing(read_step(tmp_path / "1", 1), read_step(tmp_path / "2", 1))
    assert "model/layers.0.attention.wq.weight" in changed
