"""What a command suggests at its end works when it is pasted, whatever the run was started with."""

import itertools
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from monograph.cli import main
from monograph.train import trainer
from monograph.train.command_line import RANKS_VARIABLE, CommandLine
from monograph.train.speed import SpeedReport
from monograph.train.summary import Summary, find_next, summary_rows
from tests.kit.runs import find_steps, read_records, tiny_run, write_texts

ROOT = Path(__file__).parent.parent.parent
SMALL = "--training.seq_len 32 --model.n_layers 1 --model.dim 64 --validator.interval 0 --debug.device cpu"
TRAIN = f"train llama3_debugmodel {SMALL}"


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs" / "llama3_debugmodel"


def run(command, capsys):
    assert main(shlex.split(command)) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def find_suggestions(out):
    """Text -> command, as printed under the summary."""
    lines = out.partition("try next\n")[2].splitlines()
    return dict(line.strip().split(": ", 1) for line in lines)


@pytest.mark.parametrize(
    "flags",
    [
        "--training.steps 2",
        pytest.param("--training.steps 2 --checkpoint.enabled false", marks=pytest.mark.long),
        pytest.param("--training.steps 2 --checkpoint.save_last false", marks=pytest.mark.long),
        pytest.param("--training.steps=2 --checkpoint.load=auto", marks=pytest.mark.long),
        pytest.param(
            "--training.steps 2 --job.dump_folder 'other folder' --checkpoint.interval 1", marks=pytest.mark.long
        ),
        "--training.steps 2 --checkpoint.enabled false --checkpoint.load ''",
    ],
)
def test_every_suggestion_of_a_finished_run_works_as_printed(empty, capsys, flags):
    suggestions = find_suggestions(run(f"{TRAIN} {flags}", capsys))
    assert len(suggestions) == 3
    for text, command in suggestions.items():
        words = shlex.split(command)
        assert words[0] == "monograph", command
        out = run(shlex.join(words[1:]), capsys)
        if "train" in text:
            assert "step 4)" in out, "twice as many steps in all"
            folder = Path("other folder") if "other" in flags else empty
            is_continued = "enabled false" not in flags and "save_last" not in flags
            assert [record["step"] for record in read_records(folder)] == [1, 2, 3, 4]
            assert text == ("train on" if is_continued else "train longer, with a checkpoint at the end")
            assert 4 in find_steps(folder)


def test_no_run_without_a_checkpoint_is_told_to_continue_from_one(empty, capsys):
    out = run(f"{TRAIN} --training.steps 1 --checkpoint.enabled false", capsys)
    assert "--checkpoint.load latest" not in out and "none (checkpoint.enabled is false)" in out


@pytest.mark.long
def test_a_run_with_nothing_left_to_do_names_the_checkpoint_it_continued_from(empty, capsys):
    run(f"{TRAIN} --training.steps 1", capsys)
    out = run(f"{TRAIN} --training.steps 1 --checkpoint.load latest", capsys)
    assert "no steps left: the run was complete" in out and "step-00000001" in out
    command = find_suggestions(out)["train on"]
    assert "step 2)" in run(command.removeprefix("monograph "), capsys)


@pytest.mark.long
def test_weights_that_were_only_the_start_are_not_loaded_again(empty, capsys):
    run(f"{TRAIN} --training.steps 1 --job.dump_folder first", capsys)
    start = "--checkpoint.load first/checkpoints --checkpoint.load_model_only true"
    command = find_suggestions(run(f"{TRAIN} --training.steps 2 {start}", capsys))["train on"]
    run(command.removeprefix("monograph "), capsys)
    assert [record["step"] for record in read_records(empty)] == [1, 2, 3, 4]


def make_summary(**changes):
    values = dict(steps=2, first={}, last={}, speed=SpeedReport(), validation=None, checkpoint=None)
    return Summary(**values | dict(metrics=Path("m"), missing=[], is_rank_zero=True) | changes)


def test_a_run_that_saves_nothing_says_which_settings_did_that(tmp_path):
    config = tiny_run(tmp_path, {"checkpoint.save_last": False, "checkpoint.interval": 7})
    rows = dict(summary_rows(make_summary(), config))
    assert rows["checkpoint"] == "none (checkpoint.save_last is false and checkpoint.interval is 7)"


def test_ranks_started_by_the_command_are_started_again_by_it(tmp_path):
    line = CommandLine(["recipe", "--training.steps", "2"], 4)
    saved = make_summary(checkpoint=tmp_path)
    assert dict(find_next(saved, tiny_run(tmp_path), line))["train on"] == (
        "monograph train recipe --ranks 4 --training.steps 6 --checkpoint.load latest --lr_scheduler.on_extend redecay"
    )
    under = CommandLine(["recipe"], is_launched=True)
    assert (
        "with the same torchrun: -m monograph train recipe"
        in dict(find_next(saved, tiny_run(tmp_path), under))["train on"]
    )


def test_a_fine_tuned_model_is_suggested_for_text_and_for_export(tmp_path):
    config = tiny_run(tmp_path, {"checkpoint.initial_load_path": "start", "job.dump_folder": "outputs/my model"})
    line = CommandLine(["--model.from", "start"])
    suggestions = dict(find_next(make_summary(checkpoint=tmp_path), config, line))
    assert suggestions["write text with it"] == "monograph generate 'outputs/my model' --prompt 'The first thing'"
    assert suggestions["export it for transformers"] == ("monograph hf export 'outputs/my model' 'outputs/my model-hf'")
    assert "write text with it" not in dict(find_next(make_summary(), config, line)), "nothing was saved"


@pytest.mark.long
def test_two_ranks_suggest_a_command_that_continues_them(empty):
    words = [*shlex.split(TRAIN), "--training.steps", "1", "--ranks", "2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    environment.pop(RANKS_VARIABLE, None)
    command = [sys.executable, "-m", "monograph"]
    done = subprocess.run([*command, *words], capture_output=True, text=True, env=environment)
    again = find_suggestions(done.stdout)["train on"]
    assert "--ranks 2" in again
    done = subprocess.run([*command, *shlex.split(again)[1:]], capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "step 2)" in done.stdout, done.stderr


def test_a_run_that_was_stopped_says_how_to_continue_and_that_works(empty, capsys, monkeypatch):
    calls, real = itertools.count(1), trainer.add_gradients

    def stop_in_the_second(*args):
        if next(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*args)

    monkeypatch.setattr(trainer, "add_gradients", stop_in_the_second)
    assert main(shlex.split(f"{TRAIN} --training.steps 4 --checkpoint.load auto")) == 75
    said = capsys.readouterr().err
    (command,) = [line.partition("to continue: ")[2] for line in said.splitlines() if "to continue: " in line]
    assert "step 4)" in run(command.removeprefix("monograph "), capsys)
    assert [record["step"] for record in read_records(empty)] == [1, 2, 3, 4]


@pytest.mark.long
def test_a_run_that_went_bad_is_not_told_to_resume_when_it_saved_nothing(empty, capsys):
    wild = "--optimizer.lr 1e30 --optimizer.weight_decay 0 --lr_scheduler.warmup_steps 0 --training.steps 9"
    assert main(shlex.split(f"{TRAIN} {wild}")) == 1
    assert "start again with a lower optimizer.lr" in capsys.readouterr().err
    assert main(shlex.split(f"{TRAIN} {wild} --checkpoint.interval 1")) == 1
    assert "resume from the last checkpoint with a lower optimizer.lr" in capsys.readouterr().err


def test_packed_data_is_trained_on_with_the_flags_that_packing_prints(empty, capsys):
    write_texts(Path("texts.jsonl"), [f"text number {number} " * 40 for number in range(40)])
    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2, "text": 3, "number": 4}
    model = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    added = [{"id": index, "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for name, index in (("<s>", 0), ("</s>", 1))]  # fmt: skip
    Path("tokenizer.json").write_text(
        json.dumps({"version": "1.0", "added_tokens": added, "pre_tokenizer": {"type": "Whitespace"}, "model": model})
    )
    packed = run("data pack texts.jsonl packed --tokenizer.path tokenizer.json --tokenizer.add_bos true", capsys)
    flags = packed.partition("train on them with: ")[2].strip()
    assert "--tokenizer.path tokenizer.json" in flags and "--tokenizer.add_bos True" in flags
    run(f"{TRAIN} --training.steps 1 {flags}", capsys)


@pytest.mark.slow
def test_an_artifact_is_trained_from_by_the_command_that_precompile_prints(empty, capsys):
    out = run(f"precompile llama3_debugmodel {SMALL} --training.steps 1 --out made", capsys)
    (command,) = [line.partition("train from it: ")[2] for line in out.splitlines() if "train from it" in line]
    assert "step 1)" in run(command.removeprefix("monograph "), capsys)
