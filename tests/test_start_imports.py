"""A run imports what it uses: parts of torch that take a second each are imported by what needs them alone.

Counted and not timed: the promise holds on a busy machine, and the module that breaks it is named.
"""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

from monograph import __version__

HEAVY = (
    *("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd", "torch.onnx"),
    *("torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed.checkpoint"),
    *("torch.fx.experimental.symbolic_shapes", "sympy", "mpmath", "networkx"),
    *("triton", "transformers", "datasets", "pandas", "pyarrow", "wandb", "torchft"),
    *("monograph.plan", "monograph.verify", "monograph.bisect"),
)
"""What one process that trains on a CPU never uses; a folder stands for all that lies in it."""
CODE = """
import json, sys
from monograph.cli import main
code = main(sys.argv[2:])
open(sys.argv[1], "w").write(json.dumps(sorted(sys.modules)))
sys.exit(code)
"""
ONE_STEP = ("train", "llama3_debugmodel", "--training.steps", "1")


def find_imports(tmp_path, words):
    """The modules that a command has imported when it ends."""
    listed = tmp_path / "modules.json"
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(listed), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(listed.read_text())


def find_heavy(modules, allowed=()):
    heavy = [name for name in HEAVY if name not in allowed]
    return [name for name in modules if any(name == each or name.startswith(f"{each}.") for each in heavy)]


def test_a_step_in_eager_mode_imports_no_compiler_and_no_symbols(tmp_path):
    words = [*ONE_STEP, "--compile.mode", "eager", "--checkpoint.enabled", "false"]
    modules = find_imports(tmp_path, words)
    assert "torch" in modules and "monograph.train.trainer" in modules
    assert find_heavy(modules) == []


@pytest.mark.parametrize("words", [("--version",), ("recipes",), ("config", "llama3_debugmodel"), ("train", "--help")])
def test_commands_that_compute_nothing_import_no_torch(words, tmp_path):
    modules = find_imports(tmp_path, words)
    assert [name for name in modules if name == "torch" or name.startswith("torch.")] == []


def test_a_kept_step_is_run_without_what_captures_steps(tmp_path, monkeypatch):
    """A capture needs symbols, and its mode brings the compiler; a start from a kept step needs neither."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = [*ONE_STEP, "--checkpoint.enabled", "false"]
    first = find_imports(tmp_path, words)
    assert "torch._dynamo" in first and "sympy" in first, "a capture needs both"
    assert find_heavy(find_imports(tmp_path, words)) == []


def test_the_version_is_told_with_that_of_torch_which_is_not_imported(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "monograph", "--version"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split(", ")[:2] == [f"monograph {__version__}", f"torch {version('torch')}"]
