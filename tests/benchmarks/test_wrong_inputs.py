"""Inputs that newcomers get wrong are answered early and clearly, without a traceback."""

import pytest

from benchmarks.wrong_input_cases import CASES, write_files
from benchmarks.wrong_inputs import EARLY_SECONDS, Answer, ask, render

EARLY = [
    "train llama3_debugmodel SMALL --dataloader.dataset body.jsonl",
    "train llama3_debugmodel SMALL --dataloader.dataset utf16.txt",
    "train llama3_debugmodel SMALL --job.dump_folder /proc/q",
    "train --model.from bert",
    "train llama3_debugmodel SMALL --ranks 2 --training.global_batch_size 3",
    "train llama3_debugmodel SMALL --metrics.wandb true",
]
"""One of each kind that took seconds; all of them are asked by `make test-long`."""


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wrong") / "files"
    write_files(folder)
    return folder


def test_there_are_at_least_150_different_inputs():
    assert len({command for _, command, _ in CASES}) >= 150
    assert {*EARLY} <= {command for _, command, _ in CASES}


@pytest.mark.parametrize("command", EARLY)
def test_what_took_seconds_is_answered_within_two_of_cpu_time(command, files):
    kind, _, wanted = next(case for case in CASES if case[1] == command)
    answer = ask(kind, command, wanted, files)
    assert answer.is_clear, answer.text
    assert answer.seconds <= EARLY_SECONDS, answer


@pytest.mark.long
def test_at_least_140_inputs_are_answered_early_and_none_with_a_traceback(files):
    answers = [ask(kind, command, wanted, files) for kind, command, wanted in CASES]
    assert [answer.command for answer in answers if answer.has_traceback] == []
    assert sum(answer.verdict == "early" for answer in answers) >= 140, render(answers)


def test_a_traceback_and_an_answer_about_something_else_are_noticed():
    good = Answer("flags", "train", 2, 0.5, "error: a recipe is missing", "recipe")
    assert good.verdict == "early" and Answer(**vars(good) | {"seconds": 5.0}).verdict == "late"
    assert Answer(**vars(good) | {"wanted": "model"}).verdict == "unclear"
    assert Answer(**vars(good) | {"code": 0}).verdict == "unclear"
    text = "Traceback (most recent call last):\n  ...\nKeyError: 'recipe'"
    assert Answer(**vars(good) | {"text": text, "code": 1}).verdict == "traceback"
