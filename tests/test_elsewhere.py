"""Flags of other trainers are answered with ours, never with one that merely looks alike."""

import dataclasses
import shlex

import pytest
import transformers

from monograph.commands.arguments import TrainOptions
from monograph.commands.request import read_request
from monograph.config.leaves import find_leaves
from monograph.elsewhere import OTHER, SAME
from monograph.errors import ConfigError
from monograph.recipes.catalog import load_recipe
from monograph.recipes.pretrained import MODEL_FROM

OF_TRAINER = """
    learning_rate per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps num_train_epochs
    max_steps warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon max_grad_norm lr_scheduler_type
    logging_steps eval_steps eval_strategy save_steps save_strategy save_total_limit output_dir seed data_seed bf16 fp16
    gradient_checkpointing deepspeed resume_from_checkpoint report_to run_name dataloader_num_workers optim
    load_best_model_at_end full_determinism
""".split()  # noqa: SIM905
"""Of Hugging Face's Trainer, those that people use."""
ALIKE = {"warmup_steps": "lr_scheduler.warmup_steps", "weight_decay": "optimizer.weight_decay", "seed": "debug.seed"}
"""What the search for similar names finds."""


def ask(name, value="1"):
    """What the error says to do about a flag."""
    with pytest.raises(ConfigError) as error:
        read_request(["llama3_debugmodel", f"--{name}", value], TrainOptions())
    return error.value.do


def test_flags_of_hugging_faces_trainer_are_all_known():
    assert set(OF_TRAINER) <= {field.name for field in dataclasses.fields(transformers.TrainingArguments)}
    assert set(OF_TRAINER) == set(OF_TRAINER) & {*SAME, *OTHER, *ALIKE}


@pytest.mark.parametrize("name", [*SAME, *ALIKE])
def test_a_flag_with_the_same_value_is_answered_with_ours_to_paste(name):
    said = ask(name, "a b" if name == "run_name" else "1")
    if name in ALIKE:
        assert said == f"did you mean --{ALIKE[name]}?"
        return
    flag, value = shlex.split(said)
    assert flag == f"--{SAME[name]}" and value == ("a b" if name == "run_name" else "1")


def test_every_answer_names_a_field_that_there_is():
    known = [*(leaf.path for leaf in find_leaves(load_recipe("llama3_debugmodel"))), MODEL_FROM]
    for name, field in [*SAME.items(), *((name, field) for name, (field, _) in OTHER.items())]:
        assert [path for path in known if path == field or path.startswith(f"{field}.")], name
    for name, (_, text) in OTHER.items():
        flags = [word[2:].strip(",:;") for word in text.split() if word.startswith("--")]
        assert all(flag in known or flag in ("optimizer",) for flag in flags), name
        assert ask(name) == text


def test_names_that_are_ours_or_belong_to_another_command_are_left_alone():
    assert "did you mean --training.local_batch_size" in ask("training.local_batch_siz")
    assert ask("metrics.log_freq", "5") == "--metrics.log_interval 5", "torchtitan's, with its section"
