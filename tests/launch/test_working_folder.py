"""Python files of the working folder do not run in ranks or other processes, unless their module is named."""

import subprocess
import sys
from pathlib import Path

import pytest

from monograph.config.references import import_named
from monograph.errors import ConfigError
from tests.test_launch import environment

TRAP = 'import os\nopen(os.path.join(os.path.dirname(__file__), f"ran-{__name__}"), "w").close()\nimport a_trap_ran\n'
SMALL = ["--training.steps", "2", "--compile.mode", "eager", "--debug.device", "cpu", "--checkpoint.enabled", "false"]
TRAIN = ["train", "my_recipe:paced", *SMALL, "--job.dump_folder", "run"]


@pytest.fixture
def downloaded(tmp_path):
    """A folder that somebody else made: it has files with the names of libraries, and a recipe."""
    for name in ("tyro", "torch", "pickle", "tempfile"):
        (tmp_path / f"{name}.py").write_text(TRAP)
    (tmp_path / "my_recipe.py").write_text("from tests.kit.paced import paced\n")
    return tmp_path


def run_inside(folder, *words, module="monograph", seconds=240):
    """Run a command there; return the traps that ran with the end of what was said."""
    command = [sys.executable, "-P", "-m", module, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=seconds, check=False
    )
    ran = sorted(path.name for path in folder.glob("ran-*"))
    return ran, done.returncode, (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize(
    "words", [TRAIN, pytest.param(["verify", *TRAIN[1:]], marks=pytest.mark.long)], ids=["train", "verify"]
)
def test_ranks_run_no_file_of_the_working_folder_but_the_recipe_that_is_named(words, downloaded):
    assert run_inside(downloaded, *words, "--ranks", "2")[:2] == ([], 0)


def test_ranks_of_an_agent_run_no_file_of_the_working_folder(downloaded):
    words = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--log-dir", "logs", "-m", "monograph", *TRAIN]
    assert run_inside(downloaded, *words, module="monograph.launch.agent")[:2] == ([], 0)


@pytest.mark.long
@pytest.mark.parametrize(
    "words",
    [
        ["plan", "llama3_debugmodel", "--gpus", "2", "--top", "2"],
        ["machine", "measure", "--ranks", "2", "--device", "cpu", "--out", "machine.json"],
        ["compare", f"my_recipe:paced {' '.join(SMALL[:6])}", f"my_recipe:paced {' '.join(SMALL[:6])}"],
    ],
    ids=["plan", "machine", "compare"],
)
def test_processes_that_a_command_starts_run_no_file_of_the_working_folder(words, downloaded):
    assert run_inside(downloaded, *words)[:2] == ([], 0)


@pytest.fixture
def import_path(tmp_path, monkeypatch):
    """Python's path in this process, with an empty folder as the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path and Path(path) != tmp_path])
    return sys.path


def test_the_working_folder_is_searched_last_and_only_for_modules_found_nowhere_else(import_path, tmp_path):
    (tmp_path / "tyro.py").write_text(TRAP)
    (tmp_path / "only_here.py").write_text("value = 3\n")
    import_named("tests.kit.paced")
    import_named("tyro")
    assert str(tmp_path) not in import_path
    assert import_named("only_here").value == 3
    assert import_path[-1] == str(tmp_path)
    sys.modules.pop("only_here")


def test_a_module_that_exists_nowhere_is_refused_by_name(import_path):
    with pytest.raises(ConfigError, match="no_such_module"):
        import_named("no_such_module.inner")
