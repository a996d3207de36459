"""Loss on held-out data, which must not disturb the training it watches."""

import pytest
import torch
import torch.nn.functional as F

from monograph.models.init import initialize
from monograph.run import train
from monograph.train.config import ValidatorConfig
from monograph.train.validate import Validation
from tests.kit.runs import differing, open_trainer, read_exact, read_records, read_step, tiny_run, write_texts

WATCHED = {"validator.interval": 2, "validator.samples": 5, "training.steps": 5}


def validations(folder):
    return {record["step"]: record["validation_loss"] for record in read_records(folder) if "validation_loss" in record}


@pytest.mark.parametrize("model", [pytest.param("llama3", marks=pytest.mark.long), "deepseek_v3"])
def test_validation_changes_nothing_about_training(tmp_path, model):
    train(tiny_run(tmp_path / "watched", WATCHED, model=model))
    train(tiny_run(tmp_path / "alone", WATCHED | {"validator.interval": 0}, model=model))
    watched = [record for record in read_exact(tmp_path / "watched") if "validation_loss" not in record]
    assert watched == read_exact(tmp_path / "alone")
    assert differing(read_step(tmp_path / "watched", 5), read_step(tmp_path / "alone", 5)) == []


def test_validation_comes_at_every_interval_and_at_the_end(tmp_path):
    summary = train(tiny_run(tmp_path, WATCHED))
    assert list(validations(tmp_path)) == [2, 4, 5]
    assert summary.validation.loss == validations(tmp_path)[5]


@pytest.mark.parametrize(
    ("loss", "shown"),
    [(3.4812, "32.50"), (9.5, "13,359.73"), (20.0, "4.85e+08"), (800.0, "inf"), (float("nan"), "nan")],
)
def test_perplexity_has_two_decimals_below_a_million(loss, shown):
    assert Validation({"own": loss}).describe() == f"validation loss {loss:.4f}, perplexity {shown}"
    assert f"web {loss:.4f} (perplexity {shown})" in Validation({"own": 1.0, "web": loss}).describe()


def test_a_run_may_validate_only_at_the_end():
    validator = ValidatorConfig(interval=100).build(step=None, sets={}, local_batch_size=1)
    assert [step for step in range(1, 8) if validator.is_due(step, last=7)] == [7]


def test_evaluation_counts_no_tokens_keeps_no_gradients_and_moves_no_weights(tmp_path):
    with open_trainer(tiny_run(tmp_path, WATCHED, model="deepseek_v3")) as trainer:
        model, step = trainer.step.model, trainer.step
        before = {name: value.clone() for name, value in [*step.parameters.items(), *model.named_buffers()]}
        rng, mode = torch.get_rng_state(), model.training
        first, second = trainer.validator.run(), trainer.validator.run()
        after = {name: value for name, value in [*step.parameters.items(), *model.named_buffers()]}
        assert differing(before, after) == []
        assert not step.metrics.values
        assert all(parameter.grad is None for parameter in [*step.parameters.values(), *model.parameters()])
        assert torch.equal(torch.get_rng_state(), rng) and model.training == mode
        assert first == second, "always the same micro-batches"


@pytest.mark.parametrize(("seed", "local"), [(42, 2), (7, 4), (8, 16)])
def test_the_loss_is_the_mean_over_the_tokens_of_the_first_held_out_samples_whatever_the_seed_and_the_batch(
    tmp_path, seed, local
):
    texts = [f"document {number} " * (1 + number % 7) for number in range(400)]
    dataset = str(write_texts(tmp_path / "texts.jsonl", texts))
    changes = {"dataloader.dataset": dataset, "dataloader.held_out_fraction": 0.3, "training.steps": 1}
    changes |= {"debug.seed": seed, "training.local_batch_size": local, "validator.samples": 7}
    with open_trainer(tiny_run(tmp_path / "run", WATCHED | changes)) as trainer:
        settings = {"tokenizer": trainer.config.tokenizer.build(), "seq_len": 32, "seed": 42}
        held_out = trainer.config.dataloader.build(**settings, split="validation")
        chosen = [held_out.sample(0, number) for number in range(7)]
        model = trainer.config.model.build()
        initialize(model, trainer.config.debug.seed)
        losses, valid = [], 0
        for sample in chosen:
            logits = model.predict(torch.from_numpy(sample["tokens"])[None]).detach().float()
            targets = torch.from_numpy(sample["labels"])
            losses.append(F.cross_entropy(logits[0], targets, ignore_index=-100, reduction="sum"))
            valid += int((targets != -100).sum())
        assert valid < 7 * 32, "some tokens end a document, or the mean over all tokens would pass as well"
        assert trainer.validator.run().loss == pytest.approx(float(sum(losses)) / valid, rel=1e-6)
