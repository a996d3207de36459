"""Commands and flags that errors, hints and tables print are ones that the command line understands."""

import re
import shlex

import pytest

from monograph.commands.table import COMMANDS, find_command
from monograph.config.leaves import find_leaves
from monograph.config.overrides import apply_overrides, split_flags
from monograph.errors import ConfigError
from monograph.recipes.catalog import load_recipe
from tests.docs.commands import check_command
from tests.test_texts import TEXTS

RECIPES = ("llama3_debugmodel", "deepseek_v3_debugmodel", "gpt_oss_debugmodel", "llama4_debugmodel")
FILLED = {
    "RECIPE": "llama3_debugmodel",
    "package.module:Class": "examples.own_pass:ShareEqualValues",
    "package.module:function": "examples.my_recipe:wide_and_shallow",
}
"""Words that stand for something else -> what a reader would write there."""
FLAG = re.compile(r"--([a-z_0-9]+(?:\.[a-z_0-9]+)+)(?![a-z_0-9]*[.{=(*])(?:[ ]([^\s,;`'\")\]]+))?")
NAMES = sorted((each.name for each in COMMANDS), key=len, reverse=True)
COMMAND = re.compile(
    rf"(?:^|[`'\": ])monograph ((?:{'|'.join(sorted({name.split()[0] for name in NAMES}))})\b[^`;\"\n]*)"
)
QUOTED = re.compile(r"`monograph ([^`]+)`")
NOT_VALUES = re.compile(
    r"[{}<>|(]|^[A-Z_]+$|package\.module|^(or|and|is|to|for|in|with|alone|as|instead|also|out|from|takes)$"
)
PLACEHOLDERS = {"section.field", "model.from"}


def find_printed_flags():
    """(where, field, value) of every flag of a run in a text; the value is empty where it is filled in."""
    for where, text in TEXTS:
        if where.startswith("monograph/elsewhere"):  # has a test of its own
            continue
        for name, value in FLAG.findall(text):
            if name not in PLACEHOLDERS:
                yield where, name, "" if NOT_VALUES.search(value) else value.rstrip(".:")


@pytest.fixture(scope="module")
def configs():
    return [load_recipe(name) for name in RECIPES]


def list_fields(config):
    return {leaf.path for leaf in find_leaves(config)}


def test_every_flag_that_is_printed_is_a_field_of_a_recipe(configs):
    fields = set().union(*map(list_fields, configs))
    sections = {path.rpartition(".")[0] for path in fields}
    found = {(where, name) for where, name, _ in find_printed_flags()}
    assert len(found) >= 150
    assert [f"{where}: --{name}" for where, name in sorted(found) if name not in fields | sections] == []


def test_every_value_that_is_printed_with_a_flag_can_be_parsed(configs):
    wrong, count = [], 0
    for where, name, value in find_printed_flags():
        owner = next((config for config in configs if name in list_fields(config)), None)
        if owner is None or not value or value.startswith("-"):
            continue
        count += 1
        try:
            apply_overrides(owner, split_flags([f"--{name}", value]))
        except ConfigError as error:
            wrong.append(f"{where}: --{name} {value}: {error.what}")
    assert count >= 60
    assert wrong == []


def test_every_command_that_is_named_exists():
    found = [(where, line) for where, text in TEXTS for line in COMMAND.findall(text)]
    assert len(found) >= 60
    wrong = []
    for where, line in found:
        words = [word.strip(".,:)") for word in line.split()]
        try:
            find_command(words)
        except ConfigError as error:
            wrong.append(f"{where}: monograph {line}: {error.what}")
    assert wrong == []


def test_every_command_in_backquotes_is_one_that_the_command_line_understands():
    found = [(where, line) for where, text in TEXTS for line in QUOTED.findall(text)]
    assert len(found) >= 5
    wrong = []
    for where, line in found:
        for word, value in FILLED.items():
            line = line.replace(word, value)
        try:
            check_command(shlex.split(re.sub(r"\{[^{}]*\}", "x", line)))
        except (ConfigError, AssertionError) as error:
            wrong.append(f"{where}: monograph {line}: {error}")
    assert wrong == []
