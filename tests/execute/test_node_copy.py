"""One rank of a node reads an artifact from the shared folder; the others wait for it, and read the node's copy."""

import os
from pathlib import Path
from unittest.mock import patch

import pytest

from monograph.execute.artifact import folder as artifact_folder
from monograph.execute.artifact import open as open_module
from monograph.execute.artifact.folder import read_manifest, write_artifact
from monograph.execute.artifact.manifest import ArtifactError
from monograph.execute.artifact.node_copy import make_copy
from monograph.execute.artifact.open import open_artifact
from monograph.execute.artifact.trust import find_trust
from monograph.parallel.groups import joined_groups
from monograph.run import build_step
from monograph.train.layout import plan_run_mesh
from tests.execute.artifacts import make_artifact, make_config, make_sections, nothing_made
from tests.execute.updates import CPU
from tests.kit.ranks import pool

DEGREES = {"shard": 4, "ep": 2}
FILES = {"step.json": b"{}", "step.txt": b"text"}


def open_on_nodes(folder, artifact, caches, builds):
    """On one rank of two nodes with two ranks each: the files that it reads, in order."""
    rank, read = int(os.environ["RANK"]), []
    node, real = rank // 2, artifact_folder._read

    def note(path, *args, **kwargs):
        read.append(str(path))
        return real(path, *args, **kwargs)

    config = make_config(folder, {"compile.artifact": artifact, "compile.artifact_cache": caches[node]}, **DEGREES)
    with (
        patch.dict(os.environ, {"LOCAL_RANK": str(rank % 2), "GROUP_RANK": str(node)}),
        patch.object(artifact_folder, "_read", note),
        joined_groups(plan_run_mesh(config, 4), CPU) as groups,
    ):
        if builds:
            with nothing_made():
                step = build_step(config, groups)
            step.close()
            return read
        with (
            patch.object(open_module, "find_misfits", lambda *_: []),
            patch.object(open_module, "find_machine_misfits", lambda *_: []),
        ):
            found = open_artifact(config, config.compile, groups, None)
        found.read("step.json")
    return read


@pytest.mark.parametrize("builds", [False, pytest.param(True, marks=pytest.mark.long)])
def test_one_rank_of_a_node_reads_the_shared_folder_and_the_others_read_its_copy(tmp_path, builds):
    shared, caches = str(tmp_path / "shared"), [str(tmp_path / "node-0"), str(tmp_path / "node-1")]
    if builds:
        make_artifact(tmp_path, tmp_path / "shared" / "artifact", ranks=4, **DEGREES)
    else:
        write_artifact(tmp_path / "shared" / "artifact", make_sections(), FILES)
    for is_filled in (False, True):
        answers = pool.run(4, open_on_nodes, str(tmp_path), f"{shared}/artifact", caches, builds)
        for rank, read in enumerate(answers):
            from_shared = [Path(path).name for path in read if path.startswith(shared)]
            from_cache = [path for path in read if path.startswith(caches[rank // 2])]
            assert len(from_shared) + len(from_cache) == len(read)
            assert from_cache[-1].endswith(".json"), "graphs are read from the copy, by every rank"
            if rank % 2:
                assert not from_shared
            elif is_filled:
                assert set(from_shared) == {"manifest.json"}, "a copy of the same artifact is used again"
            else:
                assert {"manifest.json", "step.json"} <= set(from_shared)


@pytest.fixture
def artifact(tmp_path):
    write_artifact(tmp_path / "shared", make_sections(), FILES)
    return tmp_path / "shared"


def copy(artifact, cache):
    manifest = read_manifest(artifact)
    return make_copy(artifact, manifest, find_trust(artifact, manifest), cache)


def test_a_damaged_copy_is_made_again(artifact, tmp_path):
    made = copy(artifact, tmp_path / "cache")
    (made / "step.json").write_bytes(b"[]")
    assert copy(artifact, tmp_path / "cache") == made
    assert (made / "step.json").read_bytes() == b"{}"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [made.name], "nothing else is left"


def test_an_artifact_that_others_can_change_and_a_disk_that_is_none_are_refused(artifact, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=r"compile\.artifact_cache"):
        copy(artifact, tmp_path / "file" / "cache")
    (artifact / "step.json").chmod(0o666)
    with pytest.raises(ArtifactError, match="a copy would hide that"):
        copy(artifact, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
