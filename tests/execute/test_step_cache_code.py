"""Code of a user's that decides a captured step: what it reads besides its source is in the key, or nothing is kept."""

import importlib
import sys
import time

import pytest

from monograph.config import sources
from monograph.config.sources import find_changed
from tests.execute.test_step_cache import digest_of, find_entries, folder, make_config, run

__all__ = ["folder"]

OWN_VARIABLE = "_".join(("OWN", "MODEL", "DEPTH"))
"""Not named in quotes here: this file is a user's code, too."""


@pytest.mark.parametrize(
    ("source", "variable"),
    [
        ('os.environ.get("LOCAL_SCALE")', "LOCAL_SCALE"),
        ('os.environ["RANKS_OF_EXPERTS"]', "RANKS_OF_EXPERTS"),
        ('[name for name in os.environ if name.startswith("OWN_MODEL_")]', OWN_VARIABLE),
        ('os.environ[f"OWN_MODEL_{name}"]', OWN_VARIABLE),
    ],
)
def test_variables_that_code_names_by_their_beginning_or_like_ranks_count(source, variable, tmp_path, monkeypatch):
    write_own("own_variables_of_a_test", source, tmp_path, monkeypatch)
    config = make_config(tmp_path)
    before = digest_of(config)
    for rank in ("LOCAL_RANK", "RANK", "MASTER_PORT"):
        monkeypatch.setenv(rank, "7")
    assert digest_of(config) == before
    monkeypatch.setenv(variable, "7")
    assert digest_of(config) != before


def write_own(name, source, folder, monkeypatch):
    """A module of a user's, which is loaded and was there before this process began."""
    path = folder / f"{name}.py"
    path.write_text(f"# {source}\n")
    monkeypatch.setitem(sys.modules, name, type(sys)(name))
    sys.modules[name].__file__ = str(path)
    return path


PASS_OF_OWN = '''
from pathlib import Path
from monograph.passes.base import Pass


class OwnPass(Pass):
    """A pass that changes nothing.

    Before:  a
    After:   a
    Why:     it notes what it would do by.
    """

    bitwise = True

    def run(self, graph, facts):
        return {note}
'''


@pytest.mark.parametrize(
    ("note", "is_kept"),
    [("'nothing'", True), ("Path(__file__).with_name('layers.json').read_text()", False)],
)
def test_a_step_by_code_that_reads_files_is_captured_every_time(note, is_kept, tmp_path, folder, monkeypatch):
    name = f"own_pass_{is_kept}_of_a_test".lower()
    (tmp_path / "layers.json").write_text("{}")
    (tmp_path / f"{name}.py").write_text(PASS_OF_OWN.format(note=note))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sources, "STARTED", time.time() + 60)
    own = importlib.import_module(name).OwnPass
    run(make_config(tmp_path, changes={"passes.extra": (own,), "validator.interval": 0}), tmp_path / "run")
    sys.modules.pop(name)
    assert len(find_entries(folder)) == is_kept


def test_a_step_whose_source_has_changed_since_the_start_is_not_kept(tmp_path, folder, monkeypatch):
    """Python has read the old source, and the key would have the new one."""
    path = write_own("own_changed_of_a_test", "old", tmp_path, monkeypatch)
    assert str(path) in find_changed()
    run(make_config(tmp_path), tmp_path / "run")
    assert find_entries(folder) == []


def test_modules_of_a_namespace_package_count(tmp_path, monkeypatch):
    place = tmp_path / "site-packages" / "own_namespace_of_a_test"
    place.mkdir(parents=True)
    (place / "inner.py").write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(str(place.parent))
    importlib.import_module("own_namespace_of_a_test.inner")
    found = sources.find_packages.__wrapped__()
    for name in ("own_namespace_of_a_test.inner", "own_namespace_of_a_test"):
        sys.modules.pop(name)
    assert "own_namespace_of_a_test.inner" in found and "torch" in found and "torch.nn" not in found
