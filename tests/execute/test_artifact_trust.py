"""Nothing of an artifact is used before it was checked, and nothing in it runs that was not vouched for."""

import hashlib
import json
import os
import pickle
import random
import shutil
from pathlib import Path
from unittest import mock

import pytest

from monograph.errors import ConfigError
from monograph.execute.artifact.folder import read_manifest, write_artifact
from monograph.execute.artifact.manifest import MANIFEST, ArtifactError, render_manifest, seal
from monograph.graph.file import graph_to_data
from monograph.manifest import sealed
from monograph.manifest.fields import FileRecord
from tests.execute.artifacts import make_sections, open_folder
from tests.graph.captures import SPREAD, capture_chunk_nodes, facts_of

TAMPERED = 100
KEY = b"a key for tests, long enough"
FACTS = facts_of(SPREAD, ("a.weight", "b.weight"))
CODE = {
    "regions/step-compiled_0.bin": random.Random(1).randbytes(4000),
    "kernels/ab/cabc.main.so": random.Random(2).randbytes(3000),
}
"""Files that would be run."""


@pytest.fixture(scope="module")
def files():
    """A graph and its text."""
    graph, _ = capture_chunk_nodes()
    return {"step.json": json.dumps(graph_to_data(graph)).encode(), "step.txt": graph.text().encode()}


@pytest.fixture
def artifact(files, tmp_path):
    write_artifact(tmp_path / "artifact", make_sections(), files)
    return tmp_path / "artifact"


@pytest.fixture
def with_code(files, tmp_path):
    write_artifact(tmp_path / "artifact", make_sections(["compiled_0"]), files | CODE)
    return tmp_path / "artifact"


def use(folder, key=None):
    """What a run does with an artifact, in this order."""
    return open_folder(folder, key).graph("step", FACTS)


def rewrite(folder, name, content, key=None):
    """What somebody does who can write to the folder: other content, with hashes that fit."""
    (folder / name).write_bytes(content)
    manifest = read_manifest(folder)
    record = FileRecord(len(content), hashlib.sha256(content).hexdigest())
    (folder / MANIFEST).write_bytes(render_manifest(manifest.sections, {**manifest.files, name: record}, key))


def tamper(folder, number):
    """Flip one bit of one byte at a random place of a random file; say where."""
    draw = random.Random(number)
    path = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    content = bytearray(path.read_bytes())
    index = draw.randrange(len(content))
    content[index] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"{path.name} at {index}"


@pytest.fixture
def nothing_read():
    """Whoever parses, unpickles or loads fails."""
    with (
        mock.patch("monograph.execute.artifact.load.graph_from_data", side_effect=AssertionError("a graph was built")),
        mock.patch("monograph.execute.artifact.load.load_compiled", side_effect=AssertionError("code was loaded")),
        mock.patch("pickle.loads", side_effect=AssertionError("something was unpickled")),
    ):
        yield


@pytest.mark.parametrize("number", range(TAMPERED))
def test_a_flipped_bit_anywhere_is_found_before_anything_is_read(with_code, number, nothing_read):
    where = tamper(with_code, number)
    with pytest.raises(ArtifactError):
        use(with_code)
        pytest.fail(f"{where} was not noticed")


def test_a_flipped_bit_of_the_manifest_is_found_before_it_is_parsed(artifact):
    (artifact / MANIFEST).write_bytes((artifact / MANIFEST).read_bytes().replace(b'"schema":1', b'"schema":3'))
    is_parsed = mock.patch("json.loads", side_effect=AssertionError("it was parsed"))
    with is_parsed, pytest.raises(ArtifactError, match="manifest is damaged"):
        use(artifact)


@pytest.mark.parametrize("name", ["step.json", "step.txt", "regions/step-compiled_0.bin", MANIFEST])
def test_a_truncated_file_is_found(with_code, name, nothing_read):
    os.truncate(with_code / name, (with_code / name).stat().st_size // 2)
    with pytest.raises(ArtifactError, match="damaged"):
        use(with_code)


def test_a_manifest_with_a_hole_is_refused_by_its_size_before_it_is_read(artifact):
    os.truncate(artifact / "manifest.json", 100 << 30)
    with pytest.raises(ArtifactError, match="its manifest cannot be read: it has 107374182400 bytes"):
        read_manifest(artifact)


@pytest.mark.parametrize("name", ["step.json", "kernels/ab/cabc.main.so", MANIFEST])
def test_a_missing_file_is_found_by_name(with_code, name, nothing_read):
    (with_code / name).unlink()
    with pytest.raises(ArtifactError) as refused:
        use(with_code)
    assert name in f"{refused.value.what} {refused.value.why}" or "no artifact" in refused.value.what


def test_an_untouched_artifact_is_used(artifact, files):
    assert len(use(artifact).nodes) == len(json.loads(files["step.json"])["nodes"])


class Payload:
    """Unpickling it would leave a mark."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("name", ["step.json", "step.txt", "regions/step-compiled_0.bin", MANIFEST])
def test_a_code_payload_in_place_of_any_file_never_runs(with_code, name, tmp_path):
    (with_code / name).write_bytes(pickle.dumps(Payload(tmp_path / "mark")))
    with pytest.raises(ArtifactError):
        use(with_code)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "payload",
    [
        lambda mark: pickle.dumps(Payload(mark)),
        lambda mark: f"__import__('os').mkdir({str(mark)!r})".encode(),
        lambda mark: json.dumps({"nodes": [{"op": "call_function", "target": "os.mkdir"}]}).encode(),
    ],
    ids=["pickle", "python", "json"],
)
def test_a_code_payload_whose_hash_was_put_right_never_runs_from_a_graph(artifact, payload, tmp_path):
    rewrite(artifact, "step.json", payload(tmp_path / "mark"))
    with pytest.raises(ArtifactError, match="holds no graph"):
        use(artifact)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("name", ["step.json", "regions/step-compiled_0.bin"])
def test_with_a_key_a_payload_whose_hash_was_put_right_is_refused_as_unsigned(files, tmp_path, name, nothing_read):
    write_artifact(tmp_path / "artifact", make_sections(["compiled_0"]), files | CODE, key=KEY)
    rewrite(tmp_path / "artifact", name, pickle.dumps(Payload(tmp_path / "mark")))
    with pytest.raises(ArtifactError, match="unsigned"):
        use(tmp_path / "artifact", KEY)
    rewrite(tmp_path / "artifact", name, pickle.dumps(Payload(tmp_path / "mark")), key=b"another key")
    with pytest.raises(ArtifactError, match="signature does not match"):
        use(tmp_path / "artifact", KEY)
    assert not (tmp_path / "mark").exists()


def test_with_a_key_only_what_was_signed_with_it_is_used(files, tmp_path):
    write_artifact(tmp_path / "signed", make_sections(), files, key=KEY)
    write_artifact(tmp_path / "plain", make_sections(), files)
    use(tmp_path / "signed", KEY)
    use(tmp_path / "signed")
    with pytest.raises(ArtifactError, match="unsigned"):
        use(tmp_path / "plain", KEY)
    with pytest.raises(ArtifactError, match="signature does not match"):
        use(tmp_path / "signed", b"another key")


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/../../b", ".hidden", "regions/../../x", ""])
def test_a_manifest_cannot_name_a_file_outside_of_its_folder(artifact, name):
    manifest = read_manifest(artifact)
    record = FileRecord(1, "0" * 64)
    (artifact / MANIFEST).write_bytes(render_manifest(manifest.sections, {name: record}, None))
    with pytest.raises(ArtifactError, match="manifest is damaged"):
        use(artifact)


def test_an_artifact_that_cannot_be_finished_leaves_nothing(files, tmp_path):
    with mock.patch("os.fsync", side_effect=OSError("the disk is full")), pytest.raises(OSError, match="disk is full"):
        write_artifact(tmp_path / "artifact", make_sections(), files)
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_is_replaced_only_when_asked_and_nothing_else_ever_is(artifact, files):
    with pytest.raises(ConfigError, match="exists already"):
        write_artifact(artifact, make_sections(), files)
    write_artifact(artifact, make_sections(), {"step.json": files["step.json"]}, overwrite=True)
    assert sorted(read_manifest(artifact).files) == ["step.json"]
    assert [path.name for path in artifact.parent.iterdir()] == ["artifact"]
    (artifact / MANIFEST).unlink()
    with pytest.raises(ConfigError, match="is not an artifact"):
        write_artifact(artifact, make_sections(), files, overwrite=True)
    assert (artifact / "step.json").exists()


def test_an_artifact_that_holds_more_than_its_manifest_lists_is_not_replaced(artifact, files):
    (artifact / "notes").mkdir()
    (artifact / "notes" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds what is not an artifact: notes/"):
        write_artifact(artifact, make_sections(), files, overwrite=True)
    assert (artifact / "notes" / "mine.txt").read_text() == "mine" and read_manifest(artifact)
    assert [path.name for path in artifact.parent.iterdir()] == ["artifact"]


def test_a_link_to_an_artifact_is_not_replaced(artifact, files):
    link = artifact.with_name("link")
    for target in (artifact, artifact.with_name("nowhere")):
        link.symlink_to(target)
        with pytest.raises(ConfigError, match="it is a link"):
            write_artifact(link, make_sections(), files, overwrite=True)
        link.unlink()
    assert read_manifest(artifact)


def test_no_checkpoint_makes_room_for_an_artifact(tmp_path, files):
    folder = tmp_path / "step-00000004"
    folder.mkdir()
    (folder / "weights").write_bytes(b"4" * 100)
    (folder / MANIFEST).write_bytes(sealed.seal(b'"schema":1,\n"files":{"weights":{"size":100}}}\n'))
    with pytest.raises(ConfigError, match="it is not an artifact"):
        write_artifact(folder, make_sections(), files, overwrite=True)
    assert (folder / "weights").exists()


def test_an_artifact_of_another_version_can_be_replaced(artifact, files):
    content = json.loads((artifact / MANIFEST).read_bytes())
    changed = {name: value for name, value in content.items() if name not in ("sha256", "hmac")} | {"schema": 99}
    (artifact / MANIFEST).write_bytes(seal(json.dumps(changed)[1:].encode(), None))
    with pytest.raises(ArtifactError, match="another version"):
        read_manifest(artifact)
    write_artifact(artifact, make_sections(), files, overwrite=True)
    assert sorted(read_manifest(artifact).files) == ["step.json", "step.txt"]


def test_the_same_content_makes_the_same_bytes(files, tmp_path):
    for name in ("one", "other"):
        write_artifact(tmp_path / name, make_sections(), files)
    assert (tmp_path / "one" / MANIFEST).read_bytes() == (tmp_path / "other" / MANIFEST).read_bytes()
    shutil.rmtree(Path(tmp_path / "other"))
