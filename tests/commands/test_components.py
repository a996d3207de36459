"""Components of your own on the command line: help, config, JSON, `--import`, and what is refused."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from monograph import cli
from monograph.commands.request import read_request
from monograph.commands.table import find_command
from monograph.config.json_form import parse_json
from tests.test_cli import RUN_MANY

ROOT = Path(__file__).parent.parent.parent
LION = ["--optimizer", "examples.own_optimizer:Lion.Config"]
SECONDS = 2.0


def run_in(folder, *words):
    """`monograph WORDS` in a process of its own that has imported nothing yet."""
    code = "import sys, monograph.cli\nsys.path.insert(0, sys.argv[1])\n"
    code += (
        "answer = monograph.cli.main(sys.argv[2:])\nprint('torch' in sys.modules, file=sys.stderr)\nsys.exit(answer)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code, str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_config_prints_the_class_and_its_fields_with_their_origins(capsys):
    assert cli.main(["config", "llama3_debugmodel", "--optimizer.beta2", "0.5", *LION]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("optimizer")]
    assert lines[0] == ["optimizer", "=", "examples.own_optimizer:Lion.Config", "(flag)"]
    assert ["optimizer.beta2", "=", "0.5", "(flag)"] in lines and ["optimizer.lr", "=", "0.0003", "(default)"] in lines
    assert not [line for line in lines if "implementation" in line[0]]


def test_help_lists_the_fields_of_the_chosen_class_and_says_what_is_kept(capsys):
    assert cli.main(["train", "llama3_debugmodel", *LION, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--optimizer.beta2" in text and "--optimizer.implementation" not in text
    assert "Known: AdamW" in text and "keep the value of a field of the same name and type" in text


def test_a_terminal_shows_the_class_too(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["config", "llama3_debugmodel", *LION]) == 0
    assert "Lion.Config" in capsys.readouterr().out


def test_json_keeps_the_class(capsys):
    assert cli.main(["config", "llama3_debugmodel", *LION, "--json"]) == 0
    config = parse_json(capsys.readouterr().out)
    assert type(config.optimizer).__qualname__ == "Lion.Config" and config.optimizer.beta2 == 0.99


WRONG = {
    "--optimizer AdamX": "did you mean --optimizer AdamW?",
    "--optimizer monograph.train.config:TrainingConfig": "monograph.train.optimizer_config:OptimizerConfig",
    "--optimizer monograph.train.optimizer_config:OptimizerConfig": "only says what they have in common",
    "--optimizer monograph.train.adamw:AdamW --optimizer.lr x": "optimizer.lr takes a number",
    "--lr_scheduler WarmupDecay --lr_scheduler.warmup 3": "did you mean --lr_scheduler.warmup_steps",
    "--tokenizer Tokenizr": "StandardTokenizer",
    "--dataloader.source FileSource": "--dataloader.source.path is missing",
    "--dataloader.source BuiltinSource --dataloader.dataset x.txt": "dataloader.source is BuiltinSourceConfig",
    "--dataloader.source BuiltinSource --dataloader.hf_subset x": "dataloader.source is BuiltinSourceConfig",
    "--model Qwen3 --model.dime 8": "did you mean --model.dim",
}


@pytest.fixture(scope="module")
def answers():
    """Every line, run in one interpreter that has no torch: words -> (code, stdout, stderr, seconds)."""
    lines = json.dumps([["config", "llama3_debugmodel", *words.split()] for words in WRONG])
    done = subprocess.run([sys.executable, "-c", RUN_MANY], input=lines, capture_output=True, text=True, check=True)
    return dict(zip(WRONG, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize(("words", "says"), WRONG.items())
def test_a_wrong_choice_of_ours_is_answered_at_once_and_without_torch(words, says, answers):
    code, _, err, seconds = answers[words]
    assert code == 2 and says in err, err
    assert seconds < SECONDS


MODULE = """
from dataclasses import dataclass
from monograph.models.llama3.config import Llama3Config
@dataclass(kw_only=True, slots=True)
class MineConfig(Llama3Config):
    extra: int = 3
"""


def test_a_file_imports_nothing_and_the_error_names_the_flag_that_does(tmp_path):
    (tmp_path / "mine.py").write_text(MODULE)
    words = ["config", "llama3_debugmodel", "--model", "mine:MineConfig", "--json"]
    written = run_in(tmp_path, *words)
    assert written.returncode == 0, written.stderr
    (tmp_path / "config.json").write_text(written.stdout)
    assert json.loads(written.stdout)["model"]["$class"] == "mine:MineConfig"
    read = "import sys; from monograph.config.json_form import parse_json\n"
    (tmp_path / "reads.py").write_text(f"{read}print(type(parse_json(open('config.json').read()).model).__name__)\n")
    refused = run_in(tmp_path, "--import", "reads", "recipes")
    assert refused.returncode == 2 and "monograph --import mine COMMAND" in refused.stderr, refused.stderr
    allowed = run_in(tmp_path, "--import", "mine", "recipes", "--import", "reads")
    assert allowed.returncode == 0 and "MineConfig" in allowed.stdout, allowed.stderr


@pytest.mark.parametrize("words", [["--import"], ["--import", "--help"], ["recipes", "--import="]])
def test_an_import_without_a_module_is_refused(words, capsys):
    assert cli.main(words) == 2
    assert "--import my_package" in capsys.readouterr().err


def test_ranks_import_what_the_command_imported(monkeypatch):
    seen = []
    monkeypatch.setattr(cli, "load_reference", lambda reference: lambda *words, **_: seen.append(words) or 0)
    assert cli.main(["--import", "json", "train", "llama3_debugmodel", *LION, "--ranks", "2"]) == 0
    assert ["train", "llama3_debugmodel", *LION, "--import", "json"] in [words[0] for words in seen]


GUIDE = (ROOT / "docs" / "guides" / "own_data_and_optimizer.md").read_text(encoding="utf-8")


def find_blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, flags=re.M | re.S)


def test_every_command_of_the_guide_is_understood():
    lines = [line for block in find_blocks("bash") for line in block.splitlines()]
    assert len(lines) == 6
    for line in lines:
        command, rest = find_command(shlex.split(line)[1:])
        read_request([word for word in rest if word != "--help"], command.arguments())


def test_the_code_of_the_guide_is_the_code_of_the_examples():
    text = "".join((ROOT / "examples" / name).read_text() for name in ("own_data.py", "own_optimizer.py"))
    known = {line.strip() for line in text.splitlines()} | {"class Lion(Optimizer):", "..."}
    shown = [line.strip() for block in find_blocks("python") for line in block.splitlines()]
    assert len(shown) > 15 and [line for line in shown if line and line not in known] == []


def test_a_subclass_without_a_config_of_its_own_is_refused_instead_of_building_its_parent(capsys):
    words = ["config", "llama3_debugmodel", "--model", "tests.commands.inheriting:Quiet"]
    assert cli.main(words) == 2
    assert "builds Starcoder2" in capsys.readouterr().err
