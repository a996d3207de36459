"""A captured step is kept for later runs: equal bits, read only when nothing that decides it has changed."""

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import pytest
import torch

import monograph
from monograph.cli import main
from monograph.config import sources
from monograph.config.leaves import replace_leaf
from monograph.execute.artifact import machine
from monograph.execute.step_cache import cache as cache_module
from monograph.execute.step_cache import key as key_module
from monograph.execute.step_cache.cache import StepCache
from monograph.execute.step_cache.key import describe_run
from monograph.parallel.groups import fake_groups, joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_step, train
from monograph.train.layout import plan_run_mesh
from tests.execute.artifacts import nothing_made
from tests.execute.updates import CPU
from tests.kit.ranks import pool
from tests.kit.runs import differing, read_exact, read_step
from tests.kit.tiny import tiny

QUIET = ("--checkpoint.enabled", "false", "--validator.interval", "0", "--metrics.page", "false")
GRAPH = {"compile.mode": "graph", "training.steps": 2, "validator.interval": 1}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of entries, in a cache folder of this test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "monograph" / "steps"


def make_config(tmp_path, model="llama3", changes=None, **degrees):
    return tiny(model, tmp_path, {**GRAPH, **(changes or {})}, **degrees)


def run(config, folder):
    """Train as `monograph train` does, in a folder of its own; the records and the last checkpoint."""
    config = replace_leaf(config, "job.dump_folder", str(folder))
    train(config, uses_cache=True)
    return read_exact(folder), read_step(folder, config.training.steps)


def find_entries(folder):
    return sorted(folder.glob("*")) if folder.exists() else []


MODELS = ["deepseek_v3", *(pytest.param(model, marks=pytest.mark.long) for model in ("llama3", "gpt_oss"))]


@pytest.mark.parametrize("model", MODELS)
def test_a_kept_step_is_not_captured_again_and_has_the_same_bits(model, tmp_path, folder):
    config = make_config(tmp_path, model)
    records, state = run(config, tmp_path / "first")
    assert [path.stat().st_mode & 0o777 for path in find_entries(folder)] == [0o600, 0o600]
    assert folder.stat().st_mode & 0o777 == 0o700
    with nothing_made():
        again, state_again = run(config, tmp_path / "second")
    assert again == records and "validation_loss" in json.dumps(records)
    assert differing(state, state_again) == []


def test_a_run_with_the_cache_off_neither_reads_nor_keeps_a_step(tmp_path, folder):
    config = make_config(tmp_path, changes={"compile.cache": "off"})
    run(config, tmp_path / "first")
    assert find_entries(folder) == []
    run(replace_leaf(config, "compile.cache", "on"), tmp_path / "second")
    with pytest.raises(AssertionError, match=r"capture|made"), nothing_made():
        run(config, tmp_path / "third")


def truncate(content):
    return content[: len(content) // 2]


def change_a_number(content):
    return content.replace(b'"bfloat16"', b'"float16"', 1) if b'"bfloat16"' in content else content[:-20] + b"0" * 20


def empty(content):
    return b""


def zeros(content):
    return bytes(len(content))


def add_a_field(content):
    return content.replace(b'"schema":1', b'"schema":2', 1)


DAMAGES = [
    truncate,
    change_a_number,
    *(pytest.param(each, marks=pytest.mark.long) for each in (add_a_field, empty, zeros)),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_left_aside_with_one_line_and_written_again(damage, tmp_path, folder, capsys):
    config = make_config(tmp_path, changes={"validator.interval": 0})
    records, _ = run(config, tmp_path / "first")
    (entry,) = find_entries(folder)
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))
    again, _ = run(config, tmp_path / "second")
    assert again == records
    warnings = [line for line in capsys.readouterr().err.splitlines() if " W " in line]
    assert len(warnings) == 1 and entry.name in warnings[0]
    assert find_entries(folder) == [entry] and entry.read_bytes() == whole


def test_an_entry_under_the_name_of_another_is_left_aside(tmp_path, folder, capsys):
    run(make_config(tmp_path), tmp_path / "first")
    one, other = find_entries(folder)
    one.write_bytes(other.read_bytes())
    run(make_config(tmp_path), tmp_path / "second")
    assert "was made for another step" in capsys.readouterr().err
    assert one.read_bytes() != other.read_bytes()


def make_open(folder):
    folder.mkdir(parents=True)
    folder.chmod(0o770)


def make_link(folder):
    target = folder.parent.parent / "elsewhere"
    target.mkdir(parents=True)
    folder.parent.mkdir()
    folder.symlink_to(target)


def make_file(folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("")


def make_replaceable(folder):
    folder.mkdir(parents=True, mode=0o700)
    folder.parent.chmod(0o777)


@pytest.mark.parametrize("make", [make_open, make_link, make_file, make_replaceable])
def test_a_folder_that_others_could_write_or_that_is_none_is_not_used(make, tmp_path, folder):
    make(folder)
    before = find_entries(folder)
    run(make_config(tmp_path), tmp_path / "run")
    assert find_entries(folder) == before


def test_without_a_home_folder_or_room_a_run_goes_on(tmp_path, folder, monkeypatch):
    def refuse(*_, **__):
        raise OSError(28, "No space left on device")

    with patch.object(cache_module, "write_whole", refuse):
        run(make_config(tmp_path), tmp_path / "full")
    assert find_entries(folder) == []
    monkeypatch.delenv("XDG_CACHE_HOME")
    with patch.object(Path, "home", side_effect=RuntimeError("Could not determine home directory.")):
        run(make_config(tmp_path), tmp_path / "homeless")


def test_an_entry_that_another_user_can_write_is_left_aside(tmp_path, folder, capsys):
    config = make_config(tmp_path, changes={"validator.interval": 0})
    run(config, tmp_path / "first")
    (entry,) = find_entries(folder)
    entry.chmod(0o666)
    run(config, tmp_path / "second")
    assert "others can write it" in capsys.readouterr().err
    assert entry.stat().st_mode & 0o777 == 0o600


def digest_of(config):
    """What decides a run's graphs, on a mesh of one, as text."""
    with fake_groups(Mesh(), 0, CPU) as groups:
        return json.dumps(describe_run(config, groups), sort_keys=True)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("training.seq_len", 16),
        ("training.local_batch_size", 2),
        ("training.compute_dtype", "bfloat16"),
        ("activation_checkpoint.mode", "full"),
        ("compile.numerics", "fast"),
        ("passes.off", ("fuse_qkv",)),
        ("model.n_layers", 1),
        ("optimizer.implementation", "single_pass"),
    ],
)
def test_a_setting_that_may_change_the_step_changes_its_key(path, value, tmp_path):
    config = make_config(tmp_path)
    assert digest_of(replace_leaf(config, path, value)) != digest_of(config)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("training.steps", 9),
        ("optimizer.lr", 0.5),
        ("debug.seed", 9),
        ("job.dump_folder", "x"),
        ("compile.cache", "off"),
    ],
)
def test_a_setting_that_cannot_change_the_step_leaves_its_key(path, value, tmp_path):
    config = make_config(tmp_path)
    assert digest_of(replace_leaf(config, path, value)) == digest_of(config)


def test_other_code_versions_and_variables_change_the_key(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    digests = [digest_of(config)]
    with patch.object(torch, "__version__", "2.99.0"):
        digests.append(digest_of(config))
    with patch.object(machine, "hash_source", lambda: "0123456789abcdef"):
        digests.append(digest_of(config))
    monkeypatch.setenv("MONOGRAPH_OF_A_TEST", "1")  # this file names it, and is a user's code
    digests.append(digest_of(config))
    own = tmp_path / "own_code_of_a_test.py"
    own.write_text("ONE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("own_code_of_a_test")
    digests.append(digest_of(config))
    own.write_text("ONE = 2\n")
    digests.append(digest_of(config))
    sys.modules.pop("own_code_of_a_test")
    assert len(set(digests)) == len(digests)


def test_packages_count_but_for_ours_whose_source_does(tmp_path, monkeypatch):
    site = tmp_path / "site-packages"
    for name in ("monograph", "other"):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("")
        module = ModuleType(name)
        module.__file__ = str(site / name / "__init__.py")
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sources, "_NOT_OWN", (str(site / "monograph"), *sources._NOT_OWN[1:]))
    before = sources.find_packages.__wrapped__()
    assert "other" in before and "torch" in before and "monograph" not in before
    os.utime(site / "other" / "__init__.py", (1, 1))
    assert sources.find_packages.__wrapped__() != before


def test_a_variable_that_no_code_names_leaves_the_key(tmp_path, monkeypatch):
    config = make_config(tmp_path)
    before = digest_of(config)
    monkeypatch.setenv("_".join(("SESSION", "NUMBER")), "7")
    assert digest_of(config) == before


def keep_in_threads(tmp_path, folder):
    """Many writers and readers of one entry; the graphs that were read."""
    config = make_config(tmp_path, changes={"validator.interval": 0})
    kept = []
    real = StepCache.store

    def note(self, wanted, table, captured):
        kept.append((self, wanted, table, captured))
        real(self, wanted, table, captured)

    with patch.object(StepCache, "store", note):
        run(config, tmp_path / "run")
    ((cache, *given),) = kept
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(real, cache, *given) for _ in range(24)]
        read = [threads.submit(cache.load, *given[:2]) for _ in range(24)]
        for each in waiting:
            each.result()
    return given[2].graph.digest(), [each.result() for each in read]


def test_processes_that_keep_and_read_a_step_at_once_see_whole_entries(tmp_path, folder, capsys):
    digest, read = keep_in_threads(tmp_path, folder)
    assert {found.graph.digest() for found in read} == {digest}
    assert len(find_entries(folder)) == 1 and "not used" not in capsys.readouterr().err


def test_entries_beyond_the_limit_are_deleted_those_that_were_not_used_for_longest_first(tmp_path, folder):
    run(make_config(tmp_path), tmp_path / "first")
    old = find_entries(folder)
    for path in old:
        os.utime(path, (1, 1))
    with patch.object(cache_module, "MAX_BYTES", sum(path.stat().st_size for path in old)):
        run(make_config(tmp_path, changes={"training.seq_len": 16}), tmp_path / "second")
    left = find_entries(folder)
    assert left and not set(left) & set(old)


def build_on_ranks(config, is_made):
    """The digest of the step that a rank builds, which it may only capture if `is_made`."""
    with joined_groups(plan_run_mesh(config, 2), CPU) as groups, nullcontext() if is_made else nothing_made():
        step = build_step(config, groups, uses_cache=True)
        digests = [found.graph.digest() for found in ([step.captured] if groups.mesh.pp == 1 else step.captured)]
        step.close()
        return digests


@pytest.mark.parametrize("degrees", [{"tp": 2}, {"shard": 2}])
def test_every_rank_reads_what_one_rank_has_kept(degrees, tmp_path, folder):
    config = make_config(tmp_path, **degrees)
    made = pool.run(2, build_in, str(folder.parents[1]), config, True)
    assert len(find_entries(folder)) == 2
    assert pool.run(2, build_in, str(folder.parents[1]), config, False) == made


def test_every_stage_of_a_pipeline_reads_its_own_step(tmp_path, folder):
    changes = {"parallelism.pipeline_parallel_degree": 2, "training.global_batch_size": 2}
    config = make_config(tmp_path, changes=changes)
    made = pool.run(2, build_in, str(folder.parents[1]), config, True)
    assert len(find_entries(folder)) == 4
    assert pool.run(2, build_in, str(folder.parents[1]), config, False) == made


def build_in(home, config, is_made):
    """As ranks of one job do, which have loaded the same code: processes of the pool have run other tests."""
    with (
        patch.dict(os.environ, {"XDG_CACHE_HOME": home}),
        patch.object(key_module, "find_loaded_sources", dict),
        patch.object(cache_module, "find_changed", list),
    ):
        return build_on_ranks(config, is_made)


def test_the_library_and_commands_that_compare_steps_capture_them_always(tmp_path, folder):
    train(make_config(tmp_path))
    words = ["llama3_debugmodel", "--model.n_layers", "1", "--training.seq_len", "16", "--debug.log_level", "warning"]
    assert main(["verify", *words, "--job.dump_folder", str(tmp_path / "verify")]) == 0
    assert main(["inspect", *words, "--out", str(tmp_path / "inspect")]) == 0
    assert find_entries(folder) == []


@pytest.mark.slow
def test_another_source_of_a_pass_is_another_step_and_that_of_a_page_is_not(tmp_path, folder):
    """A copy of the package, run from a shell: it is captured again after one line of it has changed."""
    package = tmp_path / "package"
    shutil.copytree(Path(monograph.__file__).parent, package / "monograph", ignore=shutil.ignore_patterns("*.pyc"))
    words = [*("train", "llama3_debugmodel", "--training.steps", "1", "--training.seq_len", "16"), *QUIET]
    counts = []
    for changed in ("", "passes/base.py", "watch/runs.py"):
        if changed:
            with (package / "monograph" / changed).open("a") as file:
                file.write("# changed\n")
        subprocess.run(
            [sys.executable, "-m", "monograph", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(package)},
            check=True,
            capture_output=True,
            timeout=300,
        )
        counts.append(len(find_entries(folder)))
    assert counts == [1, 2, 2]
