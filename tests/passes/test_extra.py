"""`--passes.extra`: passes of your own among ours, with their options, switches and promises."""

import copy
import importlib
import json
import pickle
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from examples.own_pass import ShareEqualValues
from monograph.cli import main
from monograph.commands.request import read_request
from monograph.config.configurable import BaseConfig, check_config
from monograph.config.diff import find_differences
from monograph.config.json_form import dump_json, parse_json
from monograph.config.text import format_config
from monograph.errors import ConfigError
from monograph.execute.artifact.check import find_misfits
from monograph.execute.artifact.compare import describe_groups, find_own_code, resolve_config
from monograph.execute.artifact.machine import describe_here
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.order import ORDER
from monograph.passes.runner import build_passes, run_passes
from monograph.train.numerics import promise_numerics
from tests.kit.pipelines import capture_small
from tests.passes import planted
from tests.passes.planted import Rounds, WithOptions, declare

ROOT = Path(__file__).parents[2]
GRAPH = ["llama3_debugmodel", "--compile.mode", "graph"]
OPTIONS, SHARING = "tests.passes.planted:WithOptions", "examples.own_pass:ShareEqualValues"


def read(*words):
    return read_request([*GRAPH, *words], BaseConfig())


def place(*kinds):
    """The names of all passes, in order."""
    return list(PassesConfig(extra=kinds).order)


@pytest.mark.parametrize("words", [[f"{OPTIONS},{SHARING}"], [OPTIONS, SHARING], [f"[{OPTIONS}, {SHARING}]"]])
def test_lists_take_commas_or_spaces(words):
    assert read("--passes.extra", *words).config.passes.extra == (WithOptions, ShareEqualValues)


def test_options_are_flags_at_once_wherever_they_stand_on_the_line():
    request = read("--passes.with_options.factor", "2", "--passes.extra", OPTIONS, "--passes.with_options.words", "a")
    assert request.config.passes.with_options == WithOptions.Config(factor=2.0, words=("a",))
    assert request.origins["passes.with_options.factor"] == "flag"
    assert "passes.with_options.factor = 2.0" in format_config(request.config)
    with pytest.raises(ConfigError, match=r"(?s)with_options.factor.*takes a number"):
        read("--passes.extra", OPTIONS, "--passes.with_options.factor", "much")
    with pytest.raises(ConfigError, match=r"did you mean --passes.with_options.factor"):
        read("--passes.extra", OPTIONS, "--passes.with_options.facto", "2")


def test_json_keeps_the_pass_and_its_options_and_reading_it_imports_nothing():
    config = read("--passes.extra", OPTIONS, "--passes.with_options.factor", "2").config
    text = dump_json(config)
    assert parse_json(text) == config and find_differences(parse_json(text), config) == []
    unknown = text.replace("tests.passes.planted", "this")  # a module that prints when it is imported
    with pytest.raises(ConfigError, match=r"(?s)may not"):
        parse_json(unknown)
    assert "this" not in sys.modules


def test_a_recipe_assigns_classes_and_options_like_any_field():
    config = PassesConfig(extra=(WithOptions,))
    config.with_options.factor = 3.0
    assert config.options_of("with_options").factor == 3.0
    config = PassesConfig()
    config.extra = (WithOptions,)
    config.with_options = WithOptions.Config(factor=4.0)
    assert build_by_name(config)["with_options"].config.factor == 4.0
    assert config.replace(extra=()).extra_options == {}
    assert copy.deepcopy(config) == config == pickle.loads(pickle.dumps(config))
    config.extra = ()
    assert not hasattr(config, "with_options")


def build_by_name(config, numerics="exact"):
    return {each.name(): each for each in build_passes(config, numerics)}


def test_options_without_their_pass_are_refused():
    with pytest.raises(ConfigError, match=r"(?s)options of with_options.*passes.extra has no pass"):
        PassesConfig(extra_options={"with_options": WithOptions.Config()})


def test_a_pass_runs_where_it_asks_to_be():
    assert place(declare("Anywhere")).index("anywhere") == place(planted.Anywhere).index("mark_regions") - 1
    order = place(declare("Late", after=("fuse_kernels",)), declare("Early", before=("remove_no_ops",)))
    assert order.index("early") == order.index("remove_no_ops") - 1
    assert order.index("late") == order.index("fuse_kernels") + 1
    between = place(declare("Between", after=("remove_no_ops",), before=("recompute",)))
    assert between.index("between") == between.index("remove_no_ops") + 1
    assert [name for name in order if name in ORDER] == list(ORDER)


def test_extra_passes_can_ask_for_places_among_each_other():
    first, second = declare("First", before=("second",)), declare("Second", before=("recompute",))
    order = place(second, first)
    assert order.index("first") + 1 == order.index("second") == order.index("recompute") - 1
    follower, leader = declare("Follower", after=("leader",)), declare("Leader", before=("fuse_kernels", "follower"))
    order = place(follower, leader)
    assert order.index("leader") + 1 == order.index("follower") > 0


@pytest.mark.parametrize(
    ("kinds", "words"),
    [
        ([("A1", {"after": ("fuse_kernels",), "before": ("recompute",)})], "recompute runs before fuse_kernels"),
        ([("A2", {"before": ("B2",)}), ("B2", {})], "(?s)A2.before has 'B2'.*did you mean b2"),
        ([("A3", {"after": ("recomputes",)})], r"did you mean recompute\?"),
        ([("A4", {"before": ("b4",)}), ("B4", {"before": ("a4",)})], "(?s)a4 and b4.*form a cycle"),
        (
            [("A5", {"after": ("b5",), "before": ("remove_no_ops",)}), ("B5", {"after": ("recompute",)})],
            "b5 has to run after recompute and before remove_no_ops",
        ),
        ([("A6", {"after": "recompute"})], "(?s)A6.after is 'recompute'.*tuple of names"),
    ],
)
def test_places_that_cannot_be_are_refused_in_words(kinds, words):
    with pytest.raises(ConfigError, match=words):
        PassesConfig(extra=tuple(declare(name, **asked) for name, asked in kinds))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("tests.passes.planted:NotAPass", r"(?s)NotAPass is not a pass.*monograph.passes.base.Pass"),
        ("tests.passes.planted:NoDocstring", "it has no docstring"),
        ("tests.passes.planted:HasNoRun", "it does not define run"),
        ("tests.passes.planted:RemoveNoOps", "(?s)called remove_no_ops.*one of monograph's own"),
        ("tests.passes.planted:On", "(?s)which is called on.*a field of passes"),
        ("tests.passes.planted:NeedsArgument", "(?s)an option without a default.*factor"),
        ("tests.passes.planted:WithOption", r"did you mean tests.passes.planted:WithOptions\?"),
        ("tests.passes.nowhere:Pass", "(?s)cannot be imported.*No module named"),
        ("WithOptions", "write package.module:name"),
        ("monograph.passes.clean.remove_no_ops:RemoveNoOps", "one of monograph's own"),
        (f"{OPTIONS},{OPTIONS}", "(?s)called with_options.*so is tests.passes.planted:WithOptions"),
    ],
)
def test_what_is_no_pass_is_refused_in_words(reference, words):
    with pytest.raises(ConfigError, match=words):
        read("--passes.extra", reference)


def test_a_class_that_is_no_pass_is_refused_without_torch(tmp_path):
    (tmp_path / "mine.py").write_text("class Mine:\n    pass\n")
    code = (
        "import sys; from monograph.cli import main\n"
        "code = main(['train', 'llama3_debugmodel', '--passes.extra', 'mine:Mine'])\n"
        "sys.exit(code if 'torch' not in sys.modules else 99)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, time.perf_counter() - start < 10) == (2, True), done.stderr
    assert "mine:Mine is not a pass" in done.stderr


def test_an_extra_pass_is_switched_like_ours_and_recorded_with_the_reason():
    config = PassesConfig(extra=(WithOptions,), off=("with_options",))
    graph, facts = capture_small("llama3", Mesh(), **{"model.n_layers": 1})
    records = {record.name: record for record in run_passes(graph, build_passes(config), facts, is_measured=False)}
    assert (records["with_options"].status, records["with_options"].note) == ("off", "passes.off has with_options")
    with pytest.raises(ConfigError, match=r"(?s)passes.with_options.factor.*passes.off has with_options"):
        read("--passes.extra", OPTIONS, "--passes.off", "with_options", "--passes.with_options.factor", "2")
    with pytest.raises(ConfigError, match=r"did you mean with_options\?"):
        read("--passes.extra", OPTIONS, "--passes.off", "with_option")
    with pytest.raises(ConfigError, match=r"(?s)passes.extra is .*WithOptions while compile.mode is eager"):
        read_request(["llama3_debugmodel", "--compile.mode", "eager", "--passes.extra", OPTIONS], BaseConfig())


def test_a_pass_that_rounds_needs_fast_numerics_or_its_name_and_shows_in_the_promise():
    reference = "tests.passes.planted:Rounds"
    with pytest.raises(ConfigError, match=r"(?s)rounds, which does not run.*it is not bitwise.*--passes.on rounds"):
        read("--passes.extra", reference)
    for words in (["--compile.numerics", "fast"], ["--passes.on", "rounds"]):
        config = read("--passes.extra", reference, *words).config
        assert not build_by_name(config.passes, config.compile.numerics)["rounds"].off
    assert "rounds" in str(promise_numerics(config, ran=["recompute", "rounds"], device="cpu"))
    assert PassesConfig(extra=(Rounds,)).find_off("exact")["rounds"] == "compile.numerics is exact"
    exact = read("--passes.extra", SHARING).config
    assert promise_numerics(exact, ran=["share_equal_values"], device="cpu").is_bitwise


def test_an_artifact_made_with_other_passes_or_another_version_of_one_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    file = tmp_path / "versioned.py"
    file.write_text(
        "from tests.passes.planted import Scaling\nclass Versioned(Scaling):\n    __doc__ = Scaling.__doc__\n"
    )
    versioned = importlib.import_module("versioned").Versioned
    with_pass = describe_here((versioned,))["versions"]
    file.write_text(file.read_text() + "# another version\n")
    changed = describe_here((versioned,))["versions"]
    assert {name for name in changed if with_pass[name] != changed[name]} == {"pass versioned:Versioned"}
    config = read("--passes.extra", SHARING).config
    assert any("passes.extra" in each and SHARING in each for each in find_artifact_misfits(read().config, config))
    assert find_artifact_misfits(config, config) == []
    (found,) = find_artifact_misfits(config, config, versions={f"pass {SHARING}": "0" * 16})
    assert found.startswith(f"versions.pass {SHARING}: artifact {'0' * 16}")


def find_artifact_misfits(made_for, config, versions=None):
    """Why an artifact for one configuration does not fit another."""
    here = describe_here(find_own_code(made_for))
    here["versions"] |= versions or {}
    sections = {"config": json.loads(json.dumps(resolve_config(made_for, Mesh()))), "mesh": {"world": 1}, **here}
    manifest = SimpleNamespace(sections={**sections, "groups": describe_groups(Mesh())})
    return find_misfits(manifest, config, Mesh())


def test_lists_and_tables_show_an_extra_pass(capsys):
    assert main(["passes", "--passes.extra", OPTIONS]) == 0
    lines = capsys.readouterr().out.splitlines()
    (index,) = [number for number, line in enumerate(lines) if line.strip().startswith("with_options")]
    assert OPTIONS in lines[index + 1] and any("factor = 1.0" in line for line in lines[index:])
    assert main(["config", *GRAPH, "--passes.extra", OPTIONS, "--passes.with_options.factor", "2"]) == 0
    shown = capsys.readouterr().out
    assert f"passes.extra = ({OPTIONS},)" in shown and "passes.with_options.factor = 2.0" in shown


def test_checked_configs_accept_an_extra_pass():
    check_config(PassesConfig(extra=(WithOptions, ShareEqualValues)))
    with pytest.raises(ConfigError, match=r"(?s)extra is .*expected"):
        check_config(PassesConfig(extra=[WithOptions]))


def test_the_guide_shows_the_example_as_it_is():
    code = (ROOT / "examples" / "own_pass.py").read_text()
    assert code[code.index("from dataclasses") :] in (ROOT / "docs" / "guides" / "own_pass.md").read_text()
    assert len(code.splitlines()) < 120
