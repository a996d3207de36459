"""An artifact is of the code that made it: of this package, kernels included, and of what a user wrote."""

import ast
import dataclasses
import importlib
import sys
from pathlib import Path

import pytest

import monograph
from examples.own_model.config import Starcoder2Config
from monograph.config.sources import hash_sources
from monograph.execute.artifact import machine
from monograph.execute.artifact.compare import find_own_code
from monograph.execute.artifact.machine import APART, describe_here, hash_source, is_shaping
from monograph.recipes.catalog import load_recipe

PACKAGE = Path(monograph.__file__).parent
ROOTS = ("models", "parallel", "capture", "graph", "passes", "execute", "kernels")
"""What makes a graph, runs it, and computes its ops."""


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the package to change; what is hashed is read from there."""
    for name in ("kernels/norm.py", "models/decoder.py", "train/step_settings.py", "train/metrics.py", "watch/runs.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes((PACKAGE / name).read_bytes())
    monkeypatch.setattr(machine, "_PACKAGE", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("kernels/norm.py", True),
        ("models/decoder.py", True),
        ("train/step_settings.py", True),
        ("train/metrics.py", False),
        ("watch/runs.py", False),
    ],
)
def test_an_artifact_does_not_fit_once_code_that_shapes_the_step_has_changed(name, counts, copied):
    before = hash_source.__wrapped__()
    with (copied / name).open("a") as file:
        file.write("# changed\n")
    assert (hash_source.__wrapped__() != before) is counts


def test_every_part_of_the_package_is_hashed_or_listed_with_a_reason():
    parts = {path.name for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(APART) <= parts
    assert {name for name in parts if not is_shaping(name)} == set(APART)
    assert all(map(is_shaping, ("kernels/norm.py", "kernels/norm_on_gpu.py", "parts.py", "config/leaves.py")))


def test_nothing_that_makes_or_runs_a_graph_imports_code_that_is_not_hashed():
    """But for what refuses, logs, reads and saves."""
    apart = {name for name, reason in APART.items() if reason in ("say what is wrong", "files")} | {"log.py"}
    files = [path for root in ROOTS for path in (PACKAGE / root).rglob("*.py")]
    found = {name for path in files for name in find_imports(path) if not is_shaping(name)}
    assert {name for name in found if name.split("/")[0] not in apart} == set()


def find_imports(path):
    """The files of this package that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("monograph."):
            stem = node.module.removeprefix("monograph.").replace(".", "/")
            yield f"{stem}.py" if (PACKAGE / f"{stem}.py").exists() else f"{stem}/__init__.py"


MODEL = """
from dataclasses import dataclass
from monograph.models.llama3.config import Llama3Config
import own_op


@dataclass(kw_only=True, slots=True)
class OwnConfig(Llama3Config):
    scale: float = 1.0
"""


def test_an_artifact_of_an_own_model_does_not_fit_once_the_model_or_what_it_imports_has_changed(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_op.py").write_text("def double(value):\n    return 2 * value\n")
    (tmp_path / "own_model_file.py").write_text(MODEL)
    kind = importlib.import_module("own_model_file").OwnConfig
    config = load_recipe("llama3_debugmodel")
    assert find_own_code(config) == []
    values = {each.name: getattr(config.model, each.name) for each in dataclasses.fields(config.model)}
    config = config.replace(model=kind(**values))
    seen = [describe_here(find_own_code(config))["versions"]]
    for name in ("own_op.py", "own_model_file.py"):
        with (tmp_path / name).open("a") as file:
            file.write("# changed\n")
        seen.append(describe_here(find_own_code(config))["versions"])
    digests = [each["code own_model_file:OwnConfig"] for each in seen]
    assert len(set(digests)) == 3
    assert len({each["source"] for each in seen}) == 1
    for name in ("own_op", "own_model_file"):
        del sys.modules[name]


PACKAGE_FILES = {
    "own_pack/__init__.py": "",
    "own_pack/consts.py": "SCALE = 2.0\n",
    "own_pack/late.py": "HALF = 0.5\n",
    "own_pack/model.py": "from own_pack.consts import SCALE\n\n"
    "def build():\n    from .late import HALF\n\nclass Own:\n    pass\n",
}


def test_the_digest_of_own_code_follows_imports_and_not_what_is_loaded(tmp_path, monkeypatch):
    """Packages with an empty __init__, constants, and imports inside of functions that have not run."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_pack").mkdir()
    for name, text in PACKAGE_FILES.items():
        (tmp_path / name).write_text(text)
    kind = importlib.import_module("own_pack.model").Own
    first = hash_sources([kind])
    importlib.import_module("own_pack.late")
    assert hash_sources([kind]) == first
    for name in PACKAGE_FILES:
        before = hash_sources([kind])
        with (tmp_path / name).open("a") as file:
            file.write("# changed\n")
        assert hash_sources([kind]) != before, name
    for name in [name for name in sys.modules if name.partition(".")[0] == "own_pack"]:
        del sys.modules[name]


def test_a_model_whose_config_names_it_by_a_text_is_hashed():
    config = load_recipe("llama3_debugmodel").replace(model=Starcoder2Config())
    assert "examples.own_model.model:Starcoder2" in describe_own(config)


def describe_own(config):
    return {f"{each.__module__}:{each.__qualname__}" for each in find_own_code(config)}
