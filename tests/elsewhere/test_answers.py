"""Flags of other trainers are answered with ours, never with one that merely looks alike."""

import dataclasses
import re
import shlex

import pytest
import transformers

from docs.generate.foreign_settings import PAGE, fill_page, find_trainers
from monograph.cli import make_options
from monograph.commands.arguments import TrainOptions
from monograph.commands.request import read_request
from monograph.commands.table import COMMANDS, find_command
from monograph.config.leaves import find_leaves
from monograph.config.overrides import apply_overrides, split_flags
from monograph.elsewhere.answer import SECTIONS, SETTINGS, fold_name
from monograph.elsewhere.commands import COMMANDS_ELSEWHERE
from monograph.elsewhere.rows import HF, NOT_HERE, TRAINERS
from monograph.errors import ConfigError
from monograph.recipes.catalog import find_recipes, load_recipe
from monograph.recipes.pretrained import MODEL_FROM
from tests.docs.commands import check_command

DENSE, EXPERTS = "llama3_debugmodel", "deepseek_v3_debugmodel"
USED = """
    learning_rate per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_train_epochs
    max_steps warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm lr_scheduler_type
    logging_steps eval_steps eval_strategy save_steps save_strategy save_total_limit output_dir seed data_seed bf16 fp16
    gradient_checkpointing deepspeed fsdp resume_from_checkpoint report_to run_name dataloader_num_workers optim
    load_best_model_at_end full_determinism torch_compile use_cpu push_to_hub ddp_timeout
""".split()  # noqa: SIM905
"""Of Hugging Face's Trainer, those that people use."""
EARLIER = {"warmup_ratio", "group_by_length", "tf32"}
"""Names that TrainingArguments had before transformers 5."""
SAME = [row.name for row in SETTINGS.values() if row.is_same]
VALUES = {"1": "1", "a b": "'a b'"}


def ask(line, recipe=DENSE):
    """The error of a line of flags."""
    with pytest.raises(ConfigError) as error:
        read_request([recipe, *shlex.split(line)], TrainOptions())
    return error.value


def find_known_paths():
    """Every field of every recipe, and every option of the commands that take one."""
    recipes = [load_recipe(name) for name in find_recipes()]
    options = [make_options(command) for command in COMMANDS if command.takes_recipe]
    return {leaf.path for config in (*recipes, *options) for leaf in find_leaves(config)} | {MODEL_FROM}


def test_the_table_has_names_of_every_trainer():
    rows = [row for rows in SECTIONS.values() for row in rows]
    assert len(rows) == len(SETTINGS) > 150, "a name stands in one row"
    assert all(sum(trainer in row.trainers for row in rows) >= 20 for trainer in TRAINERS[:-1])
    assert [row.name for row in rows if row.name != fold_name(row.name)] == []


def test_names_of_hugging_faces_trainer_are_its_fields_and_the_used_ones_are_known():
    fields = {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    named = {row.name for row in SETTINGS.values() if HF in row.trainers}
    assert named - fields - EARLIER == set() and set(USED) - named == set()


def test_every_field_that_an_answer_names_exists():
    known = find_known_paths() | {"optimizer"}
    assert {(row.name, path) for row in SETTINGS.values() for path in row.fields if path not in known} == set()
    noted = {(row.name, flag) for row in SETTINGS.values() for flag in re.findall(r"--([a-z][\w.]*\w)", row.note)}
    assert {(name, flag) for name, flag in noted if flag not in known | {"gpus", "tasks", "prompt"}} == set()


def test_every_command_that_an_answer_names_exists():
    texts = [f"{row.flags} {row.note}" for row in SETTINGS.values()]
    said = [command for text in texts for command in re.findall(r"monograph ([a-z][^;,(]*)", text)]
    assert len(said) > 5
    for command in said:
        find_command(command.split())


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("value", VALUES)
def test_a_setting_with_the_same_value_is_answered_with_the_words_to_write(name, value):
    row = SETTINGS[name]
    error = ask(f"--{name} {shlex.quote(value)}", EXPERTS if "moe" in row.fields[0] else DENSE)
    assert error.do.startswith(f"--{row.fields[0]} {VALUES[value]}")


def find_choices():
    for row in SETTINGS.values():
        yield from ((row.name, theirs) for theirs in row.values)


@pytest.mark.parametrize(("name", "theirs"), list(find_choices()))
def test_the_words_for_a_value_that_has_another_name_here_are_accepted(name, theirs):
    do = ask(f"--{name} {theirs}").do.split(" (")[0]
    apply_overrides(load_recipe(DENSE), split_flags(shlex.split(do.replace("{}", "x"))))


def test_a_value_is_carried_into_the_formula_of_what_is_counted_differently():
    assert ask("--gradient_accumulation_steps 4").do == (
        "--training.global_batch_size N (N = 4 x training.local_batch_size x data-parallel ranks)"
    )
    assert ask("--warmup_ratio 0.03").do == "--lr_scheduler.warmup_steps N (N = 0.03 x training.steps)"


def test_a_setting_without_a_counterpart_says_so_and_what_to_do():
    rows = [row for row in SETTINGS.values() if row.is_missing]
    assert len(rows) > 20
    assert [row.name for row in rows if len(ask(f"--{row.name} 1").do.removeprefix(NOT_HERE)) < 20] == []


@pytest.mark.parametrize(
    "spelling", ["learning_rate", "learning-rate", "learningRate", "LearningRate", "training.learning_rate"]
)
def test_every_spelling_of_a_name_is_the_same_name(spelling):
    assert ask(f"--{spelling} 3e-4").do == "--optimizer.lr 3e-4"
    assert ask(f"--{spelling}=3e-4").do == "--optimizer.lr 3e-4"


def test_all_flags_of_a_copied_line_are_answered_in_one_error():
    error = ask("--training.steps 5 --learning_rate 3e-4 --per-device-train-batch-size 8 --bf16")
    assert error.why == "they are flags of HF Trainer"
    assert [line.strip() for line in error.do.splitlines()] == [
        "--learning_rate 3e-4 -> --optimizer.lr 3e-4",
        "--per_device_train_batch_size 8 -> --training.local_batch_size 8",
        "--bf16 -> --training.compute_dtype bfloat16",
    ]


@pytest.mark.parametrize(
    ("line", "do"),
    {
        "--lr_scheduler cosine": "--lr_scheduler.decay cosine",
        "--optimizer adamw_torch": "--optimizer package.module:Class (AdamW is built in and needs no flag)",
        "--compile false": "--compile.mode eager",
        "--model Qwen/Qwen3-0.6B": "--model.from Qwen/Qwen3-0.6B",
        "--tokenizer tok.json": "--tokenizer.path tok.json",
    }.items(),
)
def test_a_value_for_a_section_that_other_trainers_have_as_a_setting_is_answered_with_its_field(line, do):
    assert ask(line).do.startswith(do)


def test_a_setting_of_experts_is_named_for_a_model_without_them():
    assert ask("--num-experts 8").do.startswith("it is called model.moe.n_experts, which this model does not have")


def test_our_own_names_stay_with_the_search_for_similar_names():
    assert ask("--training.local_batch_siz 2").do == "did you mean --training.local_batch_size?"
    assert ask("--optim.lr 5").do == "did you mean --optimizer.lr?"
    assert ask("--optimizer Adam").do == "did you mean --optimizer AdamW?"


def test_commands_without_a_recipe_keep_their_own_suggestions():
    with pytest.raises(ConfigError, match="did you mean --max_new_tokens"):
        check_command(["generate", "folder", "--max_length", "3"])


def test_the_page_has_the_table():
    text = PAGE.read_text(encoding="utf-8")
    assert find_trainers(text) == list(TRAINERS)
    assert text == fill_page(text), "python -m docs.generate.foreign_settings"


def test_commands_of_other_programs_are_answered_with_commands_that_exist():
    for name, answer in COMMANDS_ELSEWHERE.items():
        assert name == fold_name(name) and answer.startswith("monograph ")
        for line in re.findall(r"monograph ([^;]*)", answer):
            find_command(line.split())


def test_a_model_named_in_place_of_a_recipe_is_answered_with_model_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen2.5-0.5B").mkdir()
    (tmp_path / "Qwen2.5-0.5B" / "config.json").write_text("{}")
    assert ask("", "Qwen2.5-0.5B").do == "monograph train --model.from Qwen2.5-0.5B"
    answer = ask("--dataset texts --bf16", "--model=Qwen2.5-0.5B")
    assert answer.what == "a recipe must come before --model=Qwen2.5-0.5B"
    assert "\n--model Qwen2.5-0.5B -> --model.from Qwen2.5-0.5B" in answer.do
    assert answer.do.endswith("--bf16 -> --training.compute_dtype bfloat16")
