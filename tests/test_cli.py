"""The command line: quick, torch-free until there is work, and an answer instead of a traceback."""

import json
import os
import resource
import subprocess
import sys

import pytest

from monograph import cli
from monograph.commands import on_ranks
from monograph.config.json_form import parse_json
from monograph.config.leaves import find_leaves
from monograph.config.references import load_reference
from monograph.errors import CheckpointError, ConfigError
from monograph.recipes.catalog import find_recipes, load_recipe

RUN_MANY = """
import contextlib, io, json, sys, time
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("there is no torch here")
sys.meta_path.insert(0, NoTorch())
from monograph.cli import main
answers = []
for words in json.load(sys.stdin):
    out, err, start = io.StringIO(), io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except ImportError as error:
            code = f"went on to import torch: {error}"
    answers.append([code, out.getvalue(), err.getvalue(), time.process_time() - start])
json.dump(answers, sys.stdout)
"""

WRONG = {
    "trian llama3_8b": "did you mean 'train'?",
    "data pakc": "did you mean 'data pack'?",
    "data": "choose one of: data pack",
    "--steps 5": "before any command",
    "train": "a recipe is missing",
    "train --training.steps 5": "a recipe must come before --training.steps",
    "train llama3_8bb": "did you mean 'llama3_8b'?",
    "train --model_name_or_path Qwen2.5-0.5B --lora_r 8": "--model.from Qwen2.5-0.5B",
    "finetune llama3_8b": "monograph train --model.from FOLDER",
    "fine-tune llama3_8b": "monograph train --model.from FOLDER",
    "chat outputs/run": "monograph generate FOLDER",
    "train no.such.module:recipe": "No module named 'no'",
    "config deepseek_v3_debug": "did you mean 'deepseek_v3_debugmodel'?",
    "recipes please": "unexpected argument 'please'",
    "data pack somewhere": "OUT is missing",
    "data pack a b c": "unexpected argument 'c'",
    "data pack a b --shard_tokens 0": "--shard_tokens 0",
    "train llama3_8b --training.stepz 5": "did you mean --training.steps?",
    "train llama3_8b --steps 5": "did you mean --training.steps",
    "train llama3_8b --optim.lr 5": "did you mean --optimizer.lr?",
    "train llama3_8b --training.steps five": "training.steps takes a whole number",
    "train llama3_8b --training.steps": "--training.steps has no value",
    "train llama3_8b --training 5": "training is a section",
    "train llama3_8b --debug.device gpu": "one of: auto, cpu, cuda",
    "train llama3_8b --model.attention.kernel flsh": "flash",
    "train llama3_8b --debug.seed 1 --debug.seed 2": "given twice",
    "train llama3_8b training.steps=5": "did you mean --training.steps 5?",
    "config llama3_8b --jsn": "did you mean --json?",
    "config llama3_8b --json maybe": "json takes true or false",
    "hf imort": "did you mean 'hf import'?",
    "hf import no_such_folder out": "there is no folder no_such_folder",
    "hf export": "CHECKPOINT is missing",
}

INCONSISTENT = {
    "llama3_debugmodel --ranks 100000": "--ranks 100000 on a machine for",
    "llama3_debugmodel --training.seq_len 5000": "model.rope.max_seq_len is 2048",
    "llama3_debugmodel --training.steps 0": "steps is 0",
    "llama3_debugmodel --training.local_batch_size 0": "local_batch_size is 0",
    "llama3_debugmodel --training.global_batch_size 0": "global_batch_size is 0",
    "llama3_debugmodel --training.global_batch_size 6": "not a multiple of training.local_batch_size 4",
    "llama3_debugmodel --training.max_norm -1": "max_norm is -1",
    "llama3_debugmodel --training.dtype bfloat16": "compute_dtype is float32",
    "llama3_debugmodel --optimizer.lr 0": "lr is 0",
    "llama3_debugmodel --optimizer.beta2 1": "beta2 is 1",
    "llama3_debugmodel --lr_scheduler.warmup_steps -2": "warmup_steps is -2",
    "llama3_debugmodel --lr_scheduler.min_factor 2": "min_factor is 2",
    "llama3_debugmodel --metrics.log_interval 0": "log_interval is 0",
    "llama3_debugmodel --profiler.every 1": "windows would overlap",
    "llama3_debugmodel --validator.samples 0": "validator",
    "llama3_debugmodel --parallelism.tensor_parallel_degree 0": "tensor_parallel_degree is 0",
    "llama3_debugmodel --optimizer.lr nan": "nan is not finite",
    "llama3_debugmodel --optimizer.lr 1e400": "--optimizer.lr 1e400",
    "llama3_debugmodel --model.rope.theta inf": "--model.rope.theta inf",
    "deepseek_v3_debugmodel --model.rope.scaling yarn --model.rope.theta 1": "theta is 1",
    "llama3_debugmodel --parallelism.timeout_seconds 1e38": "timeout_seconds is 1e+38",
    "llama3_debugmodel --dataloader.held_out_fraction 1": "held_out_fraction is 1",
    "llama3_debugmodel --dataloader.prefetch 0": "prefetch is 0",
    "llama3_debugmodel --tokenizer.eos_token x": "eos_token is 'x'",
    "llama3_debugmodel --checkpoint.load_model_only": "load is empty",
    "llama3_debugmodel --checkpoint.interval -1": "interval is -1",
    "llama3_debugmodel --model.vocab_size 0": "vocab_size is 0",
    "llama3_debugmodel --model.dim 250": "dim is 250 and attention.n_heads is 8",
    "llama3_debugmodel --model.attention.n_kv_heads 3": "n_kv_heads is 3",
    "llama3_debugmodel --model.attention.n_kv_heads 16": "n_kv_heads is 16",
    "llama3_debugmodel --model.attention.head_dim 31": "head_dim is 31",
    "llama3_debugmodel --model.max_documents -1": "max_documents must be >= 0",
    "llama3_debugmodel --model.feed_forward.hidden_dim 0": "hidden_dim is 0",
    "llama3_debugmodel --model.rope.factor 0.5": "factor is 0.5",
    "llama3_8b --model.rope.low_freq_factor 5": "low_freq_factor is 5",
    "qwen3_debugmodel --model.attention.n_heads 6": "n_heads is 6",
    "qwen3_debugmodel_moe --model.moe.router.top_k 9": "top_k is 9",
    "qwen3_debugmodel_moe --model.moe.n_experts -1": "n_experts is -1",
    "deepseek_v3_debugmodel --model.moe.router.top_k 5": "a token may choose from 4 experts",
    "deepseek_v3_debugmodel --model.moe.router.top_groups 5": "top_groups is 5 and n_groups is 4",
    "deepseek_v3_debugmodel --model.moe.router.n_groups 3": "all groups have the same size",
    "deepseek_v3_debugmodel --model.moe.router.n_groups 8": "two best experts",
    "deepseek_v3_debugmodel --model.moe.n_experts 0": "n_experts is 0",
    "deepseek_v3_debugmodel --model.n_dense_layers 7": "n_dense_layers is 7",
    "deepseek_v3_debugmodel --model.attention.qk_rope_head_dim 31": "qk_rope_head_dim is 31",
    "deepseek_v3_debugmodel --model.rope.beta_slow 40": "beta_slow is 40",
}

RIGHT = [
    "",
    "--help",
    "--version",
    "recipes",
    "train --help",
    "help train",
    "data --help",
    "hf import --help",
    "data pack --help",
    "config llama3_8b",
]


@pytest.fixture(scope="module")
def answers():
    """Every command above, run in one interpreter that has no torch: words -> (code, out, err, seconds)."""
    lines = [*RIGHT, *WRONG, *(f"train {line}" for line in INCONSISTENT)]
    words = json.dumps([line.split() for line in lines])
    done = subprocess.run([sys.executable, "-c", RUN_MANY], input=words, capture_output=True, text=True, check=True)
    return dict(zip(lines, json.loads(done.stdout), strict=True))


def run(*words, **options):
    """The installed command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "monograph", *words], capture_output=True, text=True, timeout=60, **options
    )


@pytest.mark.parametrize("line", [*WRONG, *INCONSISTENT])
def test_wrong_input_ends_at_once_with_code_2_and_an_answer(answers, line):
    complaint = WRONG.get(line) or INCONSISTENT[line]
    code, out, err, seconds = answers[line if line in WRONG else f"train {line}"]
    assert code == 2 and out == "" and err.startswith("error: ")
    assert complaint in err, err
    assert "Traceback" not in err and seconds < 1


@pytest.mark.parametrize("line", RIGHT)
def test_help_and_tables_need_no_torch(answers, line):
    code, out, err, _ = answers[line]
    assert code == 0 and err == "" and out


def test_help_is_there_within_a_second_and_wrong_input_is_answered_within_two():
    def measure(*words):
        """Processor time, start of the interpreter included: other work on the machine does not count."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(*words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(measure("--help") for _ in range(3)) < 1
    assert min(measure("train", "llama3_8b", "--training.seq_len", "1000000") for _ in range(3)) < 2


def test_every_command_is_in_the_help_and_every_recipe_in_the_list(answers):
    for command in cli.COMMANDS:
        assert command.name in answers["--help"][1] and command.summary in answers["--help"][1]
    for name in find_recipes():
        assert name in answers["recipes"][1]
    assert "671.03B, 37.55B active" in answers["recipes"][1]


@pytest.mark.parametrize("name", ["llama3_debugmodel", "deepseek_v3_671b"])
def test_a_recipes_help_shows_every_field_with_type_value_and_meaning(name, capsys):
    assert cli.main(["train", name, "--training.steps", "12345", "--help"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith("  --")}
    leaves = find_leaves(load_recipe(name))
    classes = {"--model", "--optimizer", "--lr_scheduler", "--tokenizer"}
    assert set(lines) == {f"--{leaf.path}" for leaf in leaves} | {"--ranks", "--quiet"} | classes
    assert all(leaf.doc and leaf.doc in lines[f"--{leaf.path}"] for leaf in leaves)
    assert lines["--training.steps"].split()[1:3] == ["int", "12345"]


@pytest.mark.parametrize("columns", ["60", "200"])
def test_a_terminal_of_any_width_shows_every_field_in_colour(columns, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", columns)
    assert cli.main(["train", "llama3_debugmodel", "--help"]) == 0
    assert cli.main(["config", "llama3_debugmodel", "--training.steps", "7"]) == 0
    assert cli.main(["train", "llama3_debugmodel", "--training.steps", "[bold]x[/bold]"]) == 2
    shown = capsys.readouterr()
    assert "\x1b[" in shown.out
    for leaf in find_leaves(load_recipe("llama3_debugmodel")):
        assert f"--{leaf.path}" in shown.out
    assert "[bold]x[/bold]" in shown.err


def test_config_prints_every_value_with_its_origin(capsys):
    assert cli.main(["config", "llama3_debugmodel", "--training.steps", "100", "--optimizer.lr=2e-4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(find_leaves(load_recipe("llama3_debugmodel"))) + 1
    shown = {line.split()[0]: line for line in lines}
    assert shown["training.steps"].split() == ["training.steps", "=", "100", "(flag)"]
    assert shown["optimizer.lr"].split()[2:] == ["0.0002", "(flag)"]
    assert shown["model"].split()[2:] == ["monograph.models.llama3.config:Llama3Config", "(recipe)"]
    assert shown["training.seq_len"].split()[2:] == ["256", "(recipe)"]
    assert shown["debug.seed"].split()[2:] == ["42", "(default)"]


def test_config_as_json_is_the_whole_configuration(capsys):
    assert cli.main(["config", "qwen3_debugmodel_moe", "--training.steps", "7", "--json"]) == 0
    config = load_recipe("qwen3_debugmodel_moe")
    config.training.steps = 7
    assert parse_json(capsys.readouterr().out) == config


def test_a_users_recipe_with_fields_of_its_own_gets_flags_for_them(tmp_path):
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass, fields\n"
        "from monograph.recipes.llama3 import llama3_debugmodel\n"
        "from monograph.train.config import TrainerConfig, TrainingConfig\n"
        "@dataclass(kw_only=True, slots=True)\n"
        "class MyTraining(TrainingConfig):\n"
        "    curriculum: list[int] | None = None\n"
        "    '''Lengths to go through.'''\n"
        "def mine() -> TrainerConfig:\n"
        "    config = llama3_debugmodel()\n"
        "    config.training = MyTraining(seq_len=128)\n"
        "    return config\n"
    )
    done = run("config", "own:mine", "--training.curriculum", "32", "64", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "training.curriculum = [32, 64]" in done.stdout
    helped = run("train", "own:mine", "--help", cwd=tmp_path)
    assert "Lengths to go through." in helped.stdout


def test_train_hands_the_checked_configuration_to_the_trainer(monkeypatch):
    seen = []
    monkeypatch.setattr(on_ranks, "train_command", lambda config, line: seen.append(config))
    assert cli.main(["train", "llama3_debugmodel", "--training.steps", "3"]) == 0
    expected = load_recipe("llama3_debugmodel")
    expected.training.steps = 3
    assert seen == [expected]


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_every_command_names_a_function_that_exists(command):
    assert callable(load_reference(command.function))


def raising(error):
    def fail(words):
        raise error

    return fail


def test_an_error_during_a_command_is_printed_with_its_own_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(cli, "dispatch", raising(CheckpointError("torn", why="half a file", do="use another")))
    assert cli.main(["train"]) == 1
    assert capsys.readouterr().err.split("\n")[:3] == ["error: torn", "  why: half a file", "  do:  use another"]
    monkeypatch.setattr(cli, "dispatch", raising(ConfigError("wrong")))
    assert cli.main(["train"]) == 2


def test_an_interrupt_ends_with_130_and_a_short_line(monkeypatch, capsys):
    monkeypatch.setattr(cli, "dispatch", raising(KeyboardInterrupt()))
    assert cli.main(["train"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(cli, "dispatch", raising(ZeroDivisionError("ours")))
    with pytest.raises(ZeroDivisionError):
        cli.main(["train"])


@pytest.mark.parametrize(
    "words", [("config", "llama3_8b"), ("config", "llama3_8b", "--json"), ("recipes",), ("--help",)]
)
def test_a_reader_that_goes_away_is_no_error(words):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-m", "monograph", *words], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_name_that_the_terminal_cannot_show_is_no_error():
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "monograph", "config", "llama3_8b", "--job.dump_folder", "\u00fc"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and r"dump_folder = '\xfc'" in done.stdout


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "two"}, {"RANK": "2", "WORLD_SIZE": "2"}, {"RANK": "1"}])
def test_what_is_wrong_with_a_launchers_variables_is_said_at_once(variables, monkeypatch, capsys):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["train", "llama3_debugmodel"]) == 2
    assert "the environment has RANK" in capsys.readouterr().err


def test_data_pack_writes_shards_and_says_how_to_use_them(tmp_path, capsys):
    (tmp_path / "a.txt").write_text("hello")
    assert cli.main(["data", "pack", str(tmp_path / "a.txt"), str(tmp_path / "out")]) == 0
    assert f"--dataloader.dataset {tmp_path / 'out'}" in capsys.readouterr().out
    assert cli.main(["data", "pack", str(tmp_path / "a.txt"), str(tmp_path / "out")]) == 2
    assert "exists already" in capsys.readouterr().err
    (tmp_path / "b.jsonl").write_text('{"body": "hello"}\n')
    assert cli.main(["data", "pack", str(tmp_path / "b.jsonl"), str(tmp_path / "other")]) == 2
    assert "do:  --text_field body" in capsys.readouterr().err, "the flag that this command has"
