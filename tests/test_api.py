"""`import monograph as mg`: what is promised is there, documented and typed, and nothing else is loaded with it."""

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import monograph as mg
from tests.kit.tiny import tiny

ROOT = Path(__file__).parent.parent


def test_importing_the_package_loads_no_torch():
    code = "import sys, monograph; assert monograph.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", mg.__all__)
def test_every_promised_name_is_there_and_says_what_it_is(name):
    value = inspect.unwrap(getattr(mg, name))
    assert name in dir(mg)
    if name == "UnitCall":
        return  # a type alias, which cannot have a docstring
    assert inspect.getdoc(value), name
    if inspect.isfunction(value):
        hints = inspect.signature(value)
        assert hints.return_annotation is not inspect.Signature.empty, name
        assert all(each.annotation is not inspect.Parameter.empty for each in hints.parameters.values()), name


def test_every_module_with_a_public_name_is_checked_strictly():
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]["overrides"]
    strict = next(rule for rule in rules if rule.get("warn_return_any"))
    homes = {inspect.getmodule(inspect.unwrap(getattr(mg, name))).__name__ for name in mg.__all__ if name != "UnitCall"}
    assert homes <= set(strict["module"])
    assert all(strict[option] for option in strict if option != "module")


def test_the_required_setuptools_can_read_our_license():
    """A license that is an SPDX expression and no table is an error before setuptools 77."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert isinstance(project["project"]["license"], str)
    (required,) = project["build-system"]["requires"]
    name, _, oldest = required.partition(">=")
    assert name == "setuptools" and int(oldest) >= 77


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        mg.trian  # noqa: B018 - reading it is the point


def test_a_step_is_captured_improved_and_looked_at(tmp_path):
    config = tiny("llama3", tmp_path, {"compile.mode": "graph"})
    step = mg.capture(config)
    before, nodes = step.cost(), len(step.nodes)
    assert "all_gather_into_tensor" in step.text() and len(step.text()) < len(step.text(folded=False))
    improved = mg.run_passes(step)
    assert improved.graph is step.graph and not step.records
    assert [record.name for record in improved.records if record.status == "ran"]
    assert len(improved.nodes) < nodes and improved.cost().flops == before.flops
    assert {mg.tag_of(node).unit for node in improved.nodes} >= {"embedding", "layers.0", "head"}


def test_a_step_is_captured_for_a_mesh_without_its_ranks(tmp_path):
    config = tiny("llama3", tmp_path, {"compile.mode": "graph", "parallelism.tensor_parallel_degree": 2})
    alone, text = mg.capture(config, ranks=2), mg.capture(config, ranks=4).text()
    assert "reduce_scatter" in text and alone.text() != text


def test_a_run_is_verified_and_trained_from_python(tmp_path):
    config = tiny("llama3", tmp_path, {"training.steps": 2})
    verdict = mg.verify(config, steps=1)
    assert verdict is not None and verdict.is_equal
    assert mg.from_json(mg.to_json(config)) == config
    summary = mg.train(config)
    assert summary.is_rank_zero


@pytest.mark.parametrize("function", [mg.capture, mg.verify, mg.train])
def test_what_is_no_configuration_or_a_wrong_one_is_refused_in_words(function, tmp_path):
    config = tiny("llama3", tmp_path)
    config.model.n_layers = 0
    for wrong, complaint in (("llama3_8b", "load_recipe"), (config, "n_layers is 0")):
        with pytest.raises(mg.ConfigError, match=complaint):
            function(wrong)


def test_a_promised_function_can_be_called_although_a_folder_has_its_name():
    code = "import monograph as mg, monograph.train.config, monograph.verify.run\n"
    code += "for name in ('train', 'verify', 'capture', 'annotate'): assert callable(getattr(mg, name)), name\n"
    code += "assert mg.train.config.TrainerConfig is mg.TrainerConfig\n"
    code += "with mg.annotate('mine'): pass"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
