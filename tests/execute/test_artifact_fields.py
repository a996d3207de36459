"""Whatever a field of a manifest is, it is used or refused by name; never a traceback."""

import copy
import hashlib
import json
import os

import pytest

from monograph.cli import main
from monograph.execute.artifact.compare import describe_groups, describe_mesh, resolve_config
from monograph.execute.artifact.folder import MAX_MANIFEST_BYTES, read_manifest, write_artifact
from monograph.execute.artifact.machine import describe_here
from monograph.execute.artifact.manifest import MANIFEST, ArtifactError, parse_manifest, seal
from monograph.parallel.mesh import Mesh
from monograph.recipes.catalog import load_recipe
from tests.execute.artifacts import make_sections
from tests.execute.test_artifact_command import RECIPE, said

SLOT = {"names": ["w"], "shape": [4, 4], "local_shape": [2, 4], "cuts": ["fsdp along dim 0"], "unit": "w", "order": 0}
PASS = {"name": "p", "status": "ran", "note": "did it", "options": {"a": 1}, "added": 1, "removed": 2, "moved": 0}
DEEP = 400
STRIDE = 40
SHOWN = 8
"""Manifests of a section that the commands are given."""
BAD = {
    "null": None,
    "bool": True,
    "negative": -1,
    "huge": 10**30,
    "fraction": 1.5,
    "text": "x",
    "control characters": "\x1b[31mred\x07",
    "list": [],
    "object": {},
    "nested list": [[[[1]]]],
    "nested object": {"a": {"b": {"c": 1}}},
}
MISSING = object()


@pytest.fixture(scope="module")
def content(tmp_path_factory):
    """A manifest in which every field has something in it, as JSON."""
    mesh, config = Mesh(dp_shard=2), load_recipe(RECIPE)
    config = config.replace(compile=config.compile.replace(mode="graph"))
    made_for = {"config": resolve_config(config, mesh), "mesh": describe_mesh(mesh), "groups": describe_groups(mesh)}
    sections = make_sections(
        **{**describe_here(), **made_for},
        table={"w": SLOT},
        inputs={"step": {"0000 state/w": "float32[2]"}},
        passes={"step": [PASS]},
        machine={"device": "cpu", "installation": ["a", "b"], "threads": 2, "cuda": None},
    )
    folder = tmp_path_factory.mktemp("made") / "artifact"
    write_artifact(folder, sections, {"step.json": b"{}", "step.txt": b"text"})
    return json.loads((folder / MANIFEST).read_bytes())


def find_paths(value, path=()):
    """The path of every field, of every kind of container once."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, item in value.items():
            yield from find_paths(item, (*path, name))
    elif isinstance(value, list) and value:
        yield from find_paths(value[0], (*path, 0))


def change(content, path, value):
    """The manifest with one field changed or missing."""
    changed = copy.deepcopy(content)
    owner = changed
    for name in path[:-1]:
        owner = owner[name]
    if value is MISSING:
        del owner[path[-1]]
    else:
        owner[path[-1]] = value
    return changed


def render(content):
    """The bytes of a manifest, with the hash put right."""
    rest = {name: value for name, value in content.items() if name not in ("sha256", "hmac")}
    return seal((json.dumps(rest)[1:] + "\n").encode(), None)


def is_free(path):
    """Whether a field may be anything: it is only compared, or only shown."""
    return path[0] == "config" or path[:4] == ("passes", "step", 0, "options")


def find_wrong(content):
    """(what is wrong, path, changed manifest) for every field in every way."""
    fields = {name: value for name, value in content.items() if name not in ("sha256", "hmac")}
    for index, path in enumerate(find_paths(fields)):
        if is_free(path) and len(path) > 1 and index % STRIDE:
            continue  # it may be anything: a few show that
        for what, bad in {"missing": MISSING, **BAD}.items():
            yield f"{'.'.join(map(str, path))}: {what}", path, change(content, path, bad)


def test_every_field_that_is_wrong_in_any_way_is_used_or_refused_by_name(content):
    parse_manifest(render(content), None)
    refused = used = 0
    for what, path, changed in find_wrong(content):
        try:
            parse_manifest(render(changed), None)
            used += 1
        except ArtifactError as error:
            refused += 1
            named = f"{error.what} {error.why}"
            assert str(path[0]) in named, (what, named)
            assert len(path) < 3 or is_free(path) or str(path[-1]) in named or str(path[-2]) in named, (what, named)
    assert refused > 500 and used > 0, (refused, used)


def test_a_field_of_another_type_is_never_taken_for_one_of_its_own(content):
    for what, path, changed in find_wrong(content):
        owner = content
        for name in path:
            owner = owner[name]
        bad = changed
        try:
            for name in path:
                bad = bad[name]
        except (KeyError, IndexError):
            continue
        is_other = type(bad) is not type(owner) and path[0] != "machine"
        if is_other and not is_free(path):
            with pytest.raises(ArtifactError):
                parse_manifest(render(changed), None)
                pytest.fail(what)


@pytest.mark.parametrize("section", ["mesh", "groups", "config", "inputs", "passes", "machine", "versions", "files"])
def test_the_commands_answer_any_manifest_without_a_traceback(content, tmp_path, capsys, section):
    folder = tmp_path / "artifact"
    write_artifact(folder, make_sections(), {"step.json": b"{}", "step.txt": b"text"})
    wrong = [each for each in find_wrong(content) if each[1][0] == section]
    for what, _, changed in wrong[:: max(1, len(wrong) // SHOWN)]:
        (folder / MANIFEST).write_bytes(render(changed))
        for words in (["artifact", "show", str(folder)], ["artifact", "check", str(folder), RECIPE]):
            assert main(words) in (0, 2), what
        assert "\x1b" not in said(capsys), what


def test_a_mesh_that_is_no_mesh_is_refused_in_words(content, tmp_path, capsys):
    folder = tmp_path / "artifact"
    write_artifact(folder, make_sections(), {"step.json": b"{}", "step.txt": b"text"})
    for mesh in ([], {}, {"world": "two"}, {"world": 0}, {"world": {"a": 1}}, None, 7):
        (folder / MANIFEST).write_bytes(render({**content, "mesh": mesh}))
        assert main(["artifact", "check", str(folder), RECIPE]) == 2
        told = said(capsys)
        assert "manifest is damaged" in told and "mesh" in told


def test_fields_that_are_unknown_doubled_or_nested_without_end_are_refused(content):
    deep = 1
    for _ in range(DEEP):
        deep = {"a": deep}
    odd = {
        "an unknown field": render({**content, "more": 1}),
        "too deep": render(change(content, ("config", "training"), deep)),
        "doubled": seal(b'"schema":1,"schema":1}\n', None),
        "no number": seal(b'"schema":NaN}\n', None),
        "nested without end": seal(b'"schema":' + b"[" * 100_000, None),
        "a number without end": seal(b'"schema":' + b"9" * 10_000 + b"}", None),
        "nothing more": seal(b"}", None),
    }
    for what, data in odd.items():
        with pytest.raises(ArtifactError):
            parse_manifest(data, None)
            pytest.fail(what)


def test_a_part_without_its_file_and_a_file_without_its_part_are_refused(content):
    with_part = change(content, ("parts", "step"), ["compiled_0"])
    record = {"size": 1, "sha256": hashlib.sha256(b"x").hexdigest()}
    with_file = change(content, ("files", "regions/step-compiled_0.bin"), record)
    with_kernel = change(content, ("files", "kernels/x.so"), record)
    for changed in (with_part, with_file, with_kernel):
        with pytest.raises(ArtifactError, match="damaged") as refused:
            parse_manifest(render(changed), None)
        assert "parts" in refused.value.why


def test_a_pipe_or_a_folder_in_place_of_a_file_is_refused_at_once(tmp_path):
    write_artifact(tmp_path / "artifact", make_sections(), {"step.json": b"{}"})
    manifest = tmp_path / "artifact" / MANIFEST
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(ArtifactError, match="no artifact"):
        read_manifest(tmp_path / "artifact")
    manifest.unlink()
    manifest.mkdir()
    with pytest.raises(ArtifactError, match="no artifact"):
        read_manifest(tmp_path / "artifact")
    assert MAX_MANIFEST_BYTES < 1 << 30
