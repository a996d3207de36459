"""`monograph check-pass`: the example keeps its promises, and every planted mistake is refused in the right words."""

import inspect
import re
from pathlib import Path

import pytest

from examples.own_pass import ShareEqualValues
from monograph.checks.captured_model import DEBUG_MODELS, capture_model, shrink
from monograph.checks.pass_checks import check_kind
from monograph.cli import main
from monograph.config.leaves import replace_leaf
from monograph.graph.edit import call_before
from monograph.passes.compute.merge_matmuls import MergeMatmuls
from tests.passes import planted


@pytest.fixture(scope="module")
def models():
    config = replace_leaf(shrink("llama3_debugmodel"), "model.n_layers", 1)
    return [capture_model("llama3_debugmodel", config)]


def find_refusals(kind, models):
    return [f"{row.check}: {row.note}" for row in check_kind(kind, models) if row.status == "refused"]


def test_the_example_keeps_its_promises(models):
    rows = check_kind(ShareEqualValues, models)
    assert [row.status for row in rows] == ["ok"] * 3
    assert "bitwise identical" in rows[-1].note


@pytest.mark.parametrize(
    ("kind", "check", "words"),
    [
        (planted.ChangesNumbers, "bitwise", "bitwise is True, and the loss differs by "),
        (planted.RunsEndlessly, "graph rules", "a second run changes the graph, at line "),
        (planted.ReadsRank, "equal text on ranks 0 and 3", "it depends on the rank, at line "),
        (planted.LeavesNoTag, "graph rules", "a node has no tag"),
        pytest.param(planted.RoundsTooMuch, "within rounding", "more than rounding explains", marks=pytest.mark.long),
        (planted.Crashes, "graph rules", "failed; KeyError: 'no such node'; at "),
        (planted.Idle, "has something to do", "it changes none of these graphs"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_mistake_is_refused_in_the_right_words(kind, check, words, models):
    (found,) = find_refusals(kind, models)
    assert found.startswith(check) and words in found


def test_a_pass_that_rounds_is_reported_with_the_largest_difference(models):
    row = check_kind(planted.Rounds, models)[-1]
    assert row.status == "ok" and re.match(r"at most \d\.\de-0[5-7] relative, in layers", row.note)


def test_without_a_docstring_nothing_is_captured_and_the_exit_code_is_1(capsys):
    assert main(["check-pass", "tests.passes.planted:NoDocstring"]) == 1
    assert "it has no docstring" in capsys.readouterr().out


@pytest.mark.parametrize("reference", ["tests.passes.planted:NotAPass", "tests.passes.nowhere:Pass", "planted"])
def test_what_is_no_pass_is_wrong_input(reference, capsys):
    assert main(["check-pass", reference]) == 2
    assert reference in capsys.readouterr().err


@pytest.mark.long
def test_the_command_prints_a_table_and_its_verdict(capsys):
    assert main(["check-pass", "examples.own_pass:ShareEqualValues"]) == 0
    shown = capsys.readouterr().out
    assert all(shown.count(name) == 3 for name in DEBUG_MODELS) and "all checks passed" in shown
    assert main(["check-pass", "tests.passes.planted:ChangesNumbers", "--model", "llama3_debugmodel"]) == 1
    assert "refused: bitwise is True" in capsys.readouterr().out


def test_one_of_ours_cannot_be_an_extra_pass_too(models):
    assert not MergeMatmuls.bitwise
    assert main(["check-pass", "monograph.passes.compute.merge_matmuls:MergeMatmuls"]) == 1


@pytest.mark.parametrize("command", ["train", "bisect"])
def test_an_exception_in_an_own_pass_is_an_error_of_three_lines(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = "tests.kit.runs:tiny_dense --compile.mode graph --passes.extra tests.passes.planted:Crashes"
    assert main(["train", *run.split()] if command == "train" else ["bisect", run]) == 1
    error = capsys.readouterr().err
    assert "error: pass crashes failed" in error and "KeyError: 'no such node'" in error
    assert "planted.py:" in error and "--passes.off crashes" in error and "Traceback" not in error


def test_the_guide_names_the_arguments_of_call_before_as_they_are():
    guide = (Path(__file__).parent.parent.parent / "docs" / "guides" / "own_pass.md").read_text()
    names = ", ".join(list(inspect.signature(call_before).parameters)[1:5])
    assert f"`call_before(graph.module.graph, {names})`" in guide
