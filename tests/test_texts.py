"""Texts that commands print: the words of a PyTorch engineer, and counts that agree with their nouns."""

import ast
import re
from pathlib import Path

import pytest

from monograph.plurals import counted

ROOT = Path(__file__).parent.parent
PACKAGE = [path for path in sorted((ROOT / "monograph").rglob("*.py")) if path.name != "renamed.py"]
BETTER = {
    "With results that differ in rounding or precision": "If rounding or precision may change",
    "; not ep (": "not searched: ep, etp (no routed experts)",
    "gathered weights": "weights stay gathered",
    "data has {": "--data missing.txt: no such file",
    "start a new run from the saved weights": "--model.from o/more --job.dump_folder NEW",
    "and this is not a Config class": "os:path is a module without a Config class",
    "groups moved": "collectives moved to their own communicator",
    "sums with norms": "forward and backward adds into norms",
    "take turns at every all_to_all": "Overlap one chunk's all_to_all with another's compute",
    "once per chunk of the micro-batch": "Split chosen modules into chunks",
    "are taken to be routed evenly": "Assumes balanced experts",
    "The program is for a": "GPU program, traced without one",
    "capped softly": "logit soft-capping",
    "What a start can lose": "A new run never overwrites an old one",
    "lost and done again": "steps repeated after restarts",
    "keeps its promises": "all checks passed",
    "cross to backward": "saved activations",
    "evaluation runs whole": "evaluation is not chunked",
    "somebody else": "another key",
    "deal tokens out": "assign tokens evenly",
    "is no list": "is not a list",
    "{name} is no object": "is not an object",
    "is no number": "is not a number",
    "once an update": "once per update",
    "cannot be taken apart": "cannot parse",
}
"""A text that is not printed any more -> the one that is printed instead."""
COUNTS = re.compile(r"^ (?:[a-z-]+ )?([a-z_]+s)\b")
NOT_NOUNS = {"has", "is", "was", "as", "does", "this", "needs", "ranks", "differs", "bytes", "its", "less"}


def render(node):
    """A string as it is written, with {source} for what is filled in; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [
            f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else part.value
            for part in node.values
        ]
        return "".join(parts)
    return None


def find_docstrings(tree):
    """Strings that stand alone: docstrings of modules, classes, functions and fields."""
    return {
        node.value for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }


def find_texts():
    """(file:line, text) of every string of the package that is not a docstring."""
    for path in PACKAGE:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        alone = find_docstrings(tree)
        for node in ast.walk(tree):
            text = render(node)
            if text and node not in alone:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


TEXTS = list(find_texts())


@pytest.mark.parametrize("old", BETTER)
def test_a_text_that_had_to_be_decoded_does_not_come_back(old):
    assert [where for where, text in TEXTS if old in text] == [], f"better: {BETTER[old]}"


def find_plain_counts(tree):
    """(line, noun) of f-strings that print `len(...)` or a count before a plural, whatever the number is."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            is_count = isinstance(value.value, ast.Call) and ast.unparse(value.value.func) in ("len", "sum")
            match = COUNTS.match(text.value)
            if is_count and match and match[1] not in NOT_NOUNS:
                yield node.lineno, match[1]


def test_counts_take_their_nouns_from_one_place():
    assert (counted(1, "node"), counted(2048, "node")) == ("1 node", "2,048 nodes")
    assert counted(0, "sequence") == "0 sequences" and counted(2, "entry", "entries") == "2 entries"
    found = [
        f"{path.relative_to(ROOT)}:{line} prints a number and {noun}"
        for path in PACKAGE
        for line, noun in find_plain_counts(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_a_number_that_is_printed_before_a_plural_is_noticed():
    assert list(find_plain_counts(ast.parse('f"{len(x)} nodes removed"'))) == [(1, "nodes")]
    assert list(find_plain_counts(ast.parse("f\"{counted(len(x), 'node')} removed\""))) == []
