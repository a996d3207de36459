"""A loss that rises is remarked: once while it happens, and where the run sums up; one that is noisy is not."""

import itertools
import logging
import random

import pytest

from monograph.cli import main
from monograph.train.loss_monitor import WINDOW, LossMonitor


def watch(losses, caplog, norms=()):
    """What is said about a run with these losses and gradient norms, in the end and meanwhile."""
    monitor = LossMonitor()
    with caplog.at_level(logging.INFO, "monograph"):
        for step, (loss, norm) in enumerate(itertools.zip_longest(losses, norms, fillvalue=1.0), 1):
            monitor.add({"step": step, "loss": loss, "grad_norm": norm})
        said = monitor.conclude()
    return said, [record.getMessage() for record in caplog.records]


def falling(count, noise=0.0):
    draws = random.Random(0)
    return [2 + 4 * 0.97**step + noise * draws.gauss(0, 1) for step in range(count)]


CALM = {
    "learning": falling(200),
    "noise": falling(200, noise=0.3),
    "nothing learned": [6.3 + 0.1 * (step % 3) for step in range(100)],
    "one bad batch": [*falling(100), 40.0, *[2.1] * 30],
    "a run of few noisy steps": [0.4, 1.3, 0.5, 2.9, 1.1],
    "one step": [6.3],
    "one bad batch at the end": [6.3, 6.1, 6.0, 400.0],
    "noisy fine-tuning": [random.Random(step).gauss(1.5 - 0.2 * step / 3000, 0.5) for step in range(3000)],
    "fine-tuning": [1.9 - 0.001 * step + 0.05 * (step % 5) for step in range(200)],
}
DIVERGED = {
    "exploding": [*falling(40), *(10.0 * 1.3**step for step in range(20))],
    "from the first step on": [6.3 + 0.2 * step for step in range(40)],
    "unlearned": [*falling(100), *[5.0] * WINDOW],
    "a run of few steps": [6.3, 500.0, 2707.0],
}
CALM_NORMS = {
    "falling": [22.9 * 0.97**step + 0.5 for step in range(200)],
    "starting at zero weights": [min(2.0, 0.05 * 1.2**step) for step in range(100)],
    "spikes": [300.0 if step % 9 == 8 else 1.0 for step in range(100)],
}
EXPLODED_NORMS = {
    "in a long run": [*[1.0] * 60, *[5e3] * WINDOW],
    "in a short run": [1.0, 2.0, 400.0, 9e3, 8e4],
}


@pytest.mark.parametrize("name", CALM)
def test_a_loss_that_falls_stays_or_is_noisy_is_not_called_diverged(name, caplog):
    said, logged = watch(CALM[name], caplog)
    assert said == "" and not [each for each in logged if "diverged" in each and "bad" not in name]


@pytest.mark.parametrize("name", DIVERGED)
def test_a_loss_that_rises_is_called_diverged_once(name, caplog):
    said, logged = watch(DIVERGED[name], caplog)
    assert "diverged" in said and "optimizer.lr" in said
    assert len([each for each in logged if "diverged" in each]) == 1


@pytest.mark.parametrize("name", CALM_NORMS)
def test_a_gradient_norm_with_spikes_is_not_called_exploded(name, caplog):
    norms = CALM_NORMS[name]
    assert watch([3.0] * len(norms), caplog, norms) == ("", [])


@pytest.mark.parametrize("name", EXPLODED_NORMS)
def test_a_gradient_norm_that_stays_far_above_its_start_is_named(name, caplog):
    norms = EXPLODED_NORMS[name]
    said, logged = watch([3.0] * len(norms), caplog, norms)
    assert "the gradient norm has exploded" in said and "optimizer.lr" in said and len(logged) == 1


def test_a_loss_that_comes_down_again_is_taken_back(caplog):
    said, logged = watch([*falling(60), *[9.0] * WINDOW, *[2.5] * WINDOW], caplog)
    assert said == "" and len(logged) == 2 and "come down again" in logged[1]


@pytest.mark.parametrize("steps", [8, 40])
def test_the_summary_of_a_diverged_run_does_not_say_to_train_on(steps, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    wild = "--optimizer.lr 3 --optimizer.weight_decay 0 --training.max_norm 0 --lr_scheduler.warmup_steps 0"
    line = f"train tests.kit.runs:tiny_dense --training.steps {steps} --metrics.progress lines {wild}"
    assert main(line.split()) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the loss has diverged" in said and "train on" not in said
    assert "--optimizer.lr 0.3" in said and "--training.max_norm 1" in said and "outputs-again" in said
