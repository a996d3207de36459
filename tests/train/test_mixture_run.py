"""Training on a mixture: per-source losses, resuming on other meshes, validation by set."""

import math
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F

from monograph.errors import DataError
from monograph.models.init import initialize
from monograph.run import train
from monograph.train.data.cursor import Cursor
from tests.kit.ranks import pool
from tests.kit.replayed_ops import ReplayedOps
from tests.kit.runs import (
    differing,
    find_steps,
    open_trainer,
    read_exact,
    read_records,
    read_step,
    tiny_run,
    write_texts,
)
from tests.parallel.rank_work import run_trainer
from tests.train.processes import KILLED, kill, run, start, wait_until

WEIGHTS = {"web": 0.5, "code": 0.3, "books": 0.2}


@pytest.fixture
def mixture(tmp_path):
    for name in WEIGHTS:
        write_texts(tmp_path / f"{name}.jsonl", [f"{name} {number} " * 30 for number in range(30)])
    return tuple(f"{name}={weight}:{tmp_path / name}.jsonl" for name, weight in WEIGHTS.items())


def make_run(folder, mixture, **changes):
    settings = {"dataloader.mixture": mixture, "training.steps": 6, "training.global_batch_size": 4}
    settings |= {"dataloader.source_loss_interval": 2, "checkpoint.interval": 2, "training.local_batch_size": 1}
    return tiny_run(folder, {**settings, **{name.replace("__", "."): value for name, value in changes.items()}})


@pytest.mark.parametrize("mode", [pytest.param("eager", marks=pytest.mark.long), "graph"])
def test_the_loss_of_each_source_is_that_of_its_samples_in_the_update(tmp_path, mixture, mode):
    """Weighted by their tokens they add up to the loss of the update; measuring changes no bit of the training."""
    train(make_run(tmp_path / "run", mixture, compile__mode=mode, training__steps=3))
    train(
        make_run(tmp_path / "not", mixture, compile__mode=mode, training__steps=3, dataloader__source_loss_interval=0)
    )
    records = read_records(tmp_path / "run")
    assert ["source_loss" in record for record in records] == [True, True, False]
    assert differing(read_step(tmp_path / "run", 3), read_step(tmp_path / "not", 3)) == []
    with open_trainer(make_run(tmp_path / "look", mixture)) as trainer:
        for number in range(2):
            counts = dict.fromkeys(WEIGHTS, 0)
            for index in range(4 * number, 4 * number + 4):
                sample = trainer.data.sample(0, index)
                counts[list(WEIGHTS)[int(sample["source"])]] += int((sample["labels"] != -100).sum())
            record = records[number]
            assert set(record["source_loss"]) == {name for name, count in counts.items() if count}
            total = sum(counts[name] * loss for name, loss in record["source_loss"].items()) / sum(counts.values())
            assert total == pytest.approx(record["loss"], rel=1e-5)
            assert sum(record["source_samples"].values()) == 4 * number + 4


def test_nothing_that_is_replayed_before_an_update_overwrites_its_gradients(tmp_path, mixture):
    """Source losses, validation, a replay check and several micro-batches, all recorded, change no bit of 7 updates."""
    watched = {"compile__mode": "graph", "training__steps": 7, "validator__interval": 2, "validator__samples": 1}
    found = {}
    for interval in (0, 1, 3):
        config = make_run(tmp_path / str(interval), mixture, dataloader__source_loss_interval=interval, **watched)
        config.debug.replay_every, config.debug.deterministic = (4 if interval else 0), True
        recorders = []

        def make_replayed(*_, recorders=recorders):
            recorders.append(ReplayedOps())
            return recorders[0]

        with patch("monograph.run.make_recorder", make_replayed):
            train(config)
        records = read_records(tmp_path / str(interval))
        found[interval] = [(record["loss"], record["grad_norm"]) for record in records if "loss" in record]
        assert sorted(map(len, recorders[0].pools)) == [1, 2], "the step and the evaluation were recorded"
    assert len(found[0]) == 7 and found[1] == found[0] and found[3] == found[0]


@pytest.mark.parametrize("local", [1, 3, 12])
def test_source_losses_are_those_of_their_samples_and_cost_about_one_forward_of_the_update(tmp_path, mixture, local):
    """Also with dropout, of which an evaluation has none, and where micro-batches hold samples of several sources."""
    changes = {"training__local_batch_size": local, "training__global_batch_size": 12, "model__dropout": 0.5}
    with open_trainer(make_run(tmp_path, mixture, compile__mode="eager", **changes)) as trainer:
        with trainer.data.batches(Cursor(), local_batch_size=local, global_batch_size=12) as batches:
            chosen = [next(batches) for _ in range(12 // local)]
        evaluate, counts = trainer.step.evaluate_all, []
        trainer.step.evaluate_all = lambda tensors, scalars: counts.append(len(tensors)) or evaluate(tensors, scalars)
        found = trainer.source_losses.measure(chosen)
        model = trainer.config.model.build().eval()
        initialize(model, trainer.config.debug.seed)
        samples = [trainer.data.sample(0, index) for index in range(12)]
        for number, name in enumerate(WEIGHTS):
            losses, valid = 0.0, 0
            for sample in samples:
                if sample["source"] == number:
                    tokens, targets = (torch.from_numpy(sample[key]) for key in ("tokens", "labels"))
                    logits = model.predict(tokens[None]).detach()
                    losses += float(F.cross_entropy(logits[0].float(), targets, ignore_index=-100, reduction="sum"))
                    valid += int((targets != -100).sum())
            assert found[name] == pytest.approx(losses / valid, rel=1e-5)
        assert sum(counts) <= 12 // local + len(WEIGHTS), "one forward, and a micro-batch more for each source"


@pytest.mark.long
def test_a_mixture_resumes_exactly_on_another_number_of_ranks(tmp_path, mixture):
    train(make_run(tmp_path / "whole", mixture))
    whole = read_exact(tmp_path / "whole")
    pool.run(2, run_trainer, make_run(tmp_path / "two", mixture, training__steps=4, lr_scheduler__total_steps=6))
    train(make_run(tmp_path / "two", mixture, checkpoint__load="latest"))
    found = read_exact(tmp_path / "two")
    assert [each["cursor"] for each in found] == [each["cursor"] for each in whole]
    samples = [[record["source_samples"] for record in read_records(tmp_path / name)] for name in ("whole", "two")]
    assert samples[0] == samples[1]
    for one, other in zip(whole, found, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_other_weights_are_refused_on_resume(tmp_path, mixture):
    train(make_run(tmp_path / "run", mixture, training__steps=2))
    other = (mixture[0].replace("=0.5:", "=0.6:"), *mixture[1:])
    with pytest.raises(DataError, match="not the data of the saved run"):
        train(make_run(tmp_path / "run", other, training__steps=2, checkpoint__load="latest"))


def test_each_validation_set_has_a_loss_and_a_perplexity(tmp_path, mixture, capsys):
    sets = tuple(f"{name}={tmp_path / name}.jsonl" for name in ("web", "books"))
    watched = {"validator__interval": 2, "validator__samples": 2, "training__steps": 2, "debug__log_level": "info"}
    summary = train(make_run(tmp_path / "named", mixture, dataloader__validation_datasets=sets, **watched))
    train(make_run(tmp_path / "held", mixture, **watched))
    (named,) = [record for record in read_records(tmp_path / "named") if "validation" in record]
    (held,) = [record for record in read_records(tmp_path / "held") if "validation" in record]
    assert set(named["validation"]) == {"web", "books"} and set(held["validation"]) == set(WEIGHTS)
    for record in (named, held):
        losses = [each["loss"] for each in record["validation"].values()]
        assert record["validation_loss"] == pytest.approx(sum(losses) / len(losses))
        assert all(each["perplexity"] == math.exp(each["loss"]) for each in record["validation"].values())
    assert len({each["loss"] for each in held["validation"].values()}) == 3
    assert summary.validation.losses.keys() == {"web", "books"}
    assert "books " in capsys.readouterr().err


def test_a_mixture_that_is_killed_continues_to_the_bit(tmp_path, mixture):
    watched = {"validator__interval": 2, "validator__samples": 1, "training__steps": 12}
    assert run(make_run(tmp_path / "whole", mixture, **watched)) == 0
    process = start(make_run(tmp_path / "killed", mixture, **watched))
    wait_until(lambda: 4 in find_steps(tmp_path / "killed"), process)
    assert kill(process) == KILLED
    assert run(make_run(tmp_path / "killed", mixture, **watched, checkpoint__load="latest")) == 0
    names = ("step", "loss", "grad_norm", "cursor", "source_loss", "source_samples", "validation")
    seen = [
        [{name: record.get(name) for name in names} for record in read_records(tmp_path / each)]
        for each in ("whole", "killed")
    ]
    assert seen[0] == seen[1]
    assert differing(read_step(tmp_path / "whole", 12), read_step(tmp_path / "killed", 12)) == []
