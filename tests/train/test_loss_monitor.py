"""A loss that rises is remarked: once while it happens, and where the run sums up; one that is noisy is not."""

import logging
import random

import pytest

from monograph.cli import main
from monograph.train.loss_monitor import WINDOW, LossMonitor


def watch(losses, caplog):
    """What is said about a run with these losses, in the end and meanwhile."""
    monitor = LossMonitor()
    with caplog.at_level(logging.INFO, "monograph"):
        for step, loss in enumerate(losses, 1):
            monitor.add({"step": step, "loss": loss})
    return monitor.describe(), [record.getMessage() for record in caplog.records]


def falling(count, noise=0.0):
    draws = random.Random(0)
    return [2 + 4 * 0.97**step + noise * draws.gauss(0, 1) for step in range(count)]


CALM = {
    "learning": falling(200),
    "noise": falling(200, noise=0.3),
    "nothing learned": [6.3 + 0.1 * (step % 3) for step in range(100)],
    "one bad batch": [*falling(100), 40.0, *[2.1] * 30],
    "a run of few steps": [5.0, 500.0, 5000.0],
    "noisy fine-tuning": [random.Random(step).gauss(1.5 - 0.2 * step / 3000, 0.5) for step in range(3000)],
    "fine-tuning": [1.9 - 0.001 * step + 0.05 * (step % 5) for step in range(200)],
}
DIVERGED = {
    "exploding": [*falling(40), *(10.0 * 1.3**step for step in range(20))],
    "from the first step on": [6.3 + 0.2 * step for step in range(40)],
    "unlearned": [*falling(100), *[5.0] * WINDOW],
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


def test_a_loss_that_comes_down_again_is_taken_back(caplog):
    said, logged = watch([*falling(60), *[9.0] * WINDOW, *[2.5] * WINDOW], caplog)
    assert said == "" and len(logged) == 2 and "come down again" in logged[1]


def test_the_summary_of_a_diverged_run_does_not_say_to_train_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    wild = "--optimizer.lr 3 --optimizer.weight_decay 0 --training.max_norm 0 --lr_scheduler.warmup_steps 0"
    line = f"train tests.kit.runs:tiny_dense --training.steps 40 --metrics.progress lines {wild}"
    assert main(line.split()) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the loss has diverged" in said and "train on" not in said
    assert "--optimizer.lr 0.3" in said and "--training.max_norm 1" in said and "outputs-again" in said
