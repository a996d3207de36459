"""A checkpoint that is not exactly what was saved is refused, by the file's name, before a live tensor changes."""

import hashlib
import io
import json
import logging
import os
import pickle
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from monograph.errors import CheckpointError
from monograph.manifest.fields import ManifestError
from monograph.train.checkpoint.manifest import MANIFEST_NAME, parse_manifest
from monograph.train.checkpoint.verify import DamagedError
from tests.train.checkpoint.disks import blank, make_manager, make_state, same, save_steps

TENSORS = "rank-00000.safetensors"


def flip(path: Path, position: int, mask: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(bytes(data))


def check_refused(folder: Path, file: str, caplog) -> None:
    """Asked for by number it is an error; asked for as the latest, the one before it is taken. Nothing is half done."""
    with make_manager(folder, enabled=False) as manager:
        live = blank(make_state(0))
        with pytest.raises(DamagedError) as caught:
            manager.load(2, live)
        assert caught.value.file == file
        assert file in str(caught.value)
        assert same(live, blank(make_state(0)))
        caplog.clear()
        with caplog.at_level(logging.WARNING, "monograph"):
            assert manager.load("latest", live).step == 1
        assert any(file in record.getMessage() and "step-00000002" in record.getMessage() for record in caplog.records)
        assert same(live, make_state(1))


@pytest.fixture
def folder(tmp_path) -> Path:
    save_steps(tmp_path / "run", 1, 2)
    return tmp_path / "run"


def test_a_flipped_bit_anywhere_in_the_tensor_file_is_found(folder):
    path = folder / "step-00000002" / TENSORS
    with make_manager(folder, enabled=False) as manager:
        live = blank(make_state(0))
        for position in range(0, path.stat().st_size, 5):
            flip(path, position, 1 << position % 8)
            with pytest.raises(DamagedError, match=TENSORS):
                manager.load(2, live)
            flip(path, position, 1 << position % 8)
        assert same(live, blank(make_state(0)))
        manager.load(2, live)
        assert same(live, make_state(2))


def test_any_flipped_bit_of_the_manifest_is_found(folder):
    data = (folder / "step-00000002" / MANIFEST_NAME).read_bytes()
    parse_manifest(data)
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(ManifestError):
            parse_manifest(bytes(flipped))


@pytest.mark.parametrize("file", [TENSORS, MANIFEST_NAME])
@pytest.mark.parametrize("where", ["first", "header", "middle", "last"])
def test_a_flipped_byte_makes_latest_fall_back(folder, caplog, file, where):
    path = folder / "step-00000002" / file
    size = path.stat().st_size
    flip(path, {"first": 0, "header": 20, "middle": size // 2, "last": size - 1}[where], 0xFF)
    check_refused(folder, file, caplog)


@pytest.mark.parametrize("file", [TENSORS, MANIFEST_NAME])
@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_truncated_file_is_refused(folder, caplog, file, keep):
    path = folder / "step-00000002" / file
    path.write_bytes(path.read_bytes()[:keep])
    check_refused(folder, file, caplog)


@pytest.mark.parametrize("file", [TENSORS, MANIFEST_NAME])
def test_an_extended_file_is_refused(folder, caplog, file):
    with open(folder / "step-00000002" / file, "ab") as stream:
        stream.write(b"\0")
    check_refused(folder, file, caplog)


@pytest.mark.parametrize("file", [TENSORS, MANIFEST_NAME])
def test_a_deleted_file_is_refused(folder, caplog, file):
    (folder / "step-00000002" / file).unlink()
    check_refused(folder, file, caplog)


@pytest.mark.parametrize("file", [TENSORS, MANIFEST_NAME])
def test_a_file_of_another_step_is_refused(folder, caplog, file):
    """The two files have the same size and are both well formed: only the hash tells them apart."""
    shutil.copy(folder / "step-00000001" / file, folder / "step-00000002" / file)
    check_refused(folder, MANIFEST_NAME if file == MANIFEST_NAME else TENSORS, caplog)


def test_files_swapped_between_ranks_are_refused(tmp_path):
    """Two files of one checkpoint, same size, exchanged."""
    manager = make_manager(tmp_path)
    manager.save(1, {"a": torch.zeros(4)}, {})
    path = tmp_path / "step-00000001"
    first, second = path / TENSORS, path / "rank-00001.safetensors"
    manifest = json.loads((path / MANIFEST_NAME).read_bytes())
    shutil.copy(first, second)
    flip(second, -1)
    rewrite_manifest(path, manifest | {"files": {file.name: describe(file) for file in (first, second)}})
    os.rename(first, path / "x")
    os.rename(second, first)
    os.rename(path / "x", second)
    with pytest.raises(DamagedError, match=r"rank-0000[01]\.safetensors: its content has changed"):
        manager.load(1, {"a": torch.ones(4)})


def test_a_folder_renamed_to_another_step_is_refused(folder):
    os.rename(folder / "step-00000002", folder / "step-00000009")
    with make_manager(folder) as manager, pytest.raises(DamagedError, match="belongs to step 2"):
        manager.load(9, blank(make_state(0)))


def test_nothing_but_damage_is_an_error_that_names_every_file(folder):
    flip(folder / "step-00000001" / TENSORS, 300)
    (folder / "step-00000002" / MANIFEST_NAME).unlink()
    with make_manager(folder, load="auto") as manager:
        live = blank(make_state(0))
        for attempt in (lambda: manager.load("latest", live), lambda: manager.resume(live), manager.latest):
            with pytest.raises(CheckpointError, match="no intact checkpoint") as caught:
                attempt()
            assert f"step-00000001/{TENSORS}" in str(caught.value)
            assert f"step-00000002/{MANIFEST_NAME}" in str(caught.value)
        assert same(live, blank(make_state(0)))


def describe(path: Path) -> dict:
    return {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def rewrite_manifest(path: Path, manifest: dict) -> None:
    """A manifest whose own hash is right, whatever it says: what a forger would write."""
    rest = json.dumps({name: value for name, value in manifest.items() if name != "sha256"}).encode()[1:]
    text = b'{"sha256":"' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest
    (path / MANIFEST_NAME).write_bytes(text)


class Payload:
    """Pickle that leaves a trace when it is loaded."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return os.system, (f"touch {self.trace}",)


STRAYS = (".metadata", "__0_0.distcp", "values.pkl", "rank-00001.safetensors")


@pytest.mark.parametrize("file", [TENSORS, MANIFEST_NAME, *STRAYS])
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_code_in_a_checkpoint_never_runs(folder, tmp_path, file, form):
    trace = tmp_path / "trace"
    path = folder / "step-00000002" / file
    buffer = io.BytesIO()
    (pickle.dump if form == "pickle" else torch.save)(Payload(trace), buffer)
    path.write_bytes(buffer.getvalue())
    live = blank(make_state(0))
    with make_manager(folder) as manager:
        for which in (2, folder / "step-00000002"):
            with nullcontext() if file in STRAYS else pytest.raises(DamagedError):
                manager.load(which, live)
        assert manager.load("latest", live).step == (2 if file in STRAYS else 1)
    assert not trace.exists()


def test_code_in_a_file_that_the_manifest_vouches_for_never_runs(folder, tmp_path):
    trace = tmp_path / "trace"
    path = folder / "step-00000002"
    (path / TENSORS).write_bytes(pickle.dumps(Payload(trace)))
    manifest = json.loads((path / MANIFEST_NAME).read_bytes())
    rewrite_manifest(path, manifest | {"files": {TENSORS: describe(path / TENSORS)}})
    with make_manager(folder) as manager, pytest.raises(DamagedError, match=TENSORS):
        manager.load(2, blank(make_state(0)))
    assert not trace.exists()


def test_a_forged_manifest_cannot_reach_outside_its_folder(folder):
    path = folder / "step-00000002"
    original = json.loads((path / MANIFEST_NAME).read_bytes())
    for name in ("../step-00000001/rank-00000.safetensors", "/etc/passwd", "a/b.safetensors", "..", "x.txt"):
        files = original["files"] | {name: {"size": 1, "sha256": "0" * 64}}
        rewrite_manifest(path, original | {"files": files})
        with make_manager(folder) as manager, pytest.raises(DamagedError, match="lists a file as"):
            manager.load(2, blank(make_state(0)))


def test_a_forged_manifest_must_agree_with_the_headers_of_its_files(folder):
    path = folder / "step-00000002"
    original = json.loads((path / MANIFEST_NAME).read_bytes())
    live = blank(make_state(0))
    for change in ({"dtype": "int32"}, {"shape": [4, 6], "chunks": [chunk(path, [4, 6])]}):
        tensors = original["tensors"] | {
            "model/embedding.weight": original["tensors"]["model/embedding.weight"] | change
        }
        rewrite_manifest(path, original | {"tensors": tensors})
        with make_manager(folder) as manager, pytest.raises(DamagedError, match="not what the manifest says"):
            manager.load(2, live)
    assert same(live, blank(make_state(0)))


def chunk(path: Path, sizes: list[int]) -> dict:
    return {"offsets": [0] * len(sizes), "sizes": sizes, "file": TENSORS, "key": "model/embedding.weight"}
