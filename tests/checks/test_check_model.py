"""`monograph check-model`: families of the package and a model from outside pass, planted mistakes are named."""

from dataclasses import dataclass

import pytest
import torch

import monograph as mg
from examples.own_model.config import Starcoder2Config
from examples.own_model.model import Starcoder2
from monograph.checks import model_checks
from monograph.checks.captured_model import shrink
from monograph.checks.model_checks import check_description, check_model
from monograph.cli import main

FAMILIES = (
    "llama3_debugmodel",
    "deepseek_v3_debugmodel",
    "gpt_oss_debugmodel",
    "llama4_debugmodel",
    "mistral_debugmodel",
    "gemma2_debugmodel",
    "gemma3_debugmodel",
    "qwen2_5_debugmodel",
    "qwen3_debugmodel",
    "qwen3_debugmodel_moe",
    "llama3_1b",
)
MISTAKES = {
    "OutsideUnits": "the parameter scale.weight belongs to no unit of the model",
    "WholeOutput": "layers.0.feed_forward.c_proj.weight is whole on every rank",
    "OtherInputs": "forward cannot be called with tokens, labels, targets and call",
    "Dropping": "draws from a global generator",
    "HalfMapped": "layers.1.norm_2.bias: the map does not name it",
    "RankReader": "ranks capture different steps",
    "DirectCall": "it reads a parameter or another tensor that is not an input of the step",
    "Branching": "depends on the values of a tensor",
    "NoStart": "no module says how to initialize layers.0.gain",
}


def check(words, capsys):
    code = main(["check-model", *words])
    return code, capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("recipe", FAMILIES)
def test_every_family_of_the_package_passes(recipe):
    rows = list(check_model(shrink(recipe)))
    assert [row.status for row in rows] == ["ok"] * 5, rows


def test_a_model_from_outside_passes_and_the_report_says_how_to_train_it(capsys):
    code, shown = check(["examples.own_model.model:Starcoder2"], capsys)
    assert code == 0, shown
    assert "monograph train llama3_debugmodel --model examples.own_model.model:Starcoder2" in shown
    assert "shards over fsdp, tp" in shown and "loss and 34 gradients equal bit for bit" in shown


class Positioned(Starcoder2):
    """Cannot run without what its step_inputs adds to the batch."""

    @dataclass(kw_only=True, slots=True)
    class Config(Starcoder2Config):
        """Its own, so that this class is built."""

    def step_inputs(self, batch, part):
        length = batch["tokens"].shape[1]
        return super().step_inputs(batch, part) | {"places": torch.arange(length).expand_as(batch["tokens"])}

    def forward(self, tokens, labels, targets, places, *, call=mg.call_module):
        return super().forward(tokens, labels, targets, call=call, positions=places)


def test_forward_may_need_what_step_inputs_adds():
    assert "6 units" in check_description(shrink("llama3_debugmodel").replace(model=Positioned.Config()))


LATER = ("Branching", "RankReader", "DirectCall")
"""Mistakes that capture finds, whose messages have tests of their own."""


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.long] if each in LATER else []) for each in MISTAKES]
)
def test_a_planted_mistake_is_refused_in_words(name, capsys, monkeypatch):
    if name == "HalfMapped":  # maps are checked last, after captures that find nothing
        last = list(model_checks.CHECKS)[-1]
        monkeypatch.setattr(model_checks, "CHECKS", {last: model_checks.CHECKS[last]})
    code, shown = check([f"tests.checks.models_with_mistakes:{name}"], capsys)
    assert code == 1 and "refused" in shown
    assert MISTAKES[name] in " ".join(shown.split()), shown


@pytest.mark.long
def test_verify_on_two_ranks_is_part_of_the_check_and_finds_what_one_process_cannot(capsys):
    code, shown = check(["examples.own_model.model:Starcoder2", "--ranks", "2"], capsys)
    assert code == 0 and "verify fsdp2" in shown and "verify tp2" in shown, shown
    code, shown = check(["tests.checks.models_with_mistakes:ShareDependent", "--ranks", "2"], capsys)
    assert code == 1 and "refused" in shown and "verify tp2" in shown, shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["examples.own_model.model:Starcoder3"], "did you mean examples.own_model.model:Starcoder2"),
        (["examples.own_model.model:GeluFeedForward"], "GeluFeedForward"),
        (["examples.own_model.model:Starcoder2", "--ranks", "1"], "--ranks 2"),
    ],
)
def test_what_is_no_model_is_refused(words, said, capsys):
    assert main(["check-model", *words]) == 2
    assert said in capsys.readouterr().err
