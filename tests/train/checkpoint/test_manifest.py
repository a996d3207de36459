"""The manifest says exactly what it means, or it is refused."""

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monograph.manifest.fields import FileRecord, ManifestError
from monograph.train.checkpoint.manifest import (
    CheckpointManifest,
    Chunk,
    TensorRecord,
    parse_head,
    parse_manifest,
    render_manifest,
)

FILE = "rank-00000.safetensors"
GOOD = CheckpointManifest(
    step=3,
    sequence=2,
    run="ab",
    values={"x": 1},
    tensors={
        "a": TensorRecord(
            "float32", (4, 2), (Chunk((0, 0), (1, 2), FILE, "a@0,0"), Chunk((1, 0), (3, 2), FILE, "a@1"))
        ),
        "scalar": TensorRecord("int64", (), (Chunk((), (), FILE, "scalar"),)),
        "empty": TensorRecord("bfloat16", (0, 3), ()),
    },
    files={FILE: FileRecord(100, "0" * 64)},
)


def forge(change) -> bytes:
    """Change the parsed content and give it a hash that fits."""
    raw = json.loads(render_manifest(GOOD))
    del raw["sha256"]
    change(raw)
    rest = json.dumps(raw).encode()[1:]
    return b'{"sha256":"' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest


def test_what_is_rendered_is_parsed_again():
    assert parse_manifest(render_manifest(GOOD)) == GOOD
    assert parse_manifest(forge(lambda raw: None)) == GOOD


def test_the_head_alone_says_what_the_whole_manifest_says():
    whole = replace(GOOD, values={"x": [1, {"files": {}}], "y": ',\n"files":{'})
    for data in (render_manifest(whole), forge(lambda raw: None)):
        head, full = parse_head(data), parse_manifest(data)
        assert (head.step, head.sequence, head.run, head.values) == (full.step, full.sequence, full.run, full.values)


def test_a_head_is_believed_only_when_the_hash_of_the_whole_manifest_is_right():
    data = render_manifest(GOOD)
    for changed in (data[:-3] + b"x" + data[-2:], data[:-1], data.replace(b'"step":3', b'"step":4')):
        with pytest.raises(ManifestError):
            parse_head(changed)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4))
def test_any_json_values_survive(values):
    manifest = CheckpointManifest(1, 1, "r", values, {}, {})
    assert parse_manifest(render_manifest(manifest)) == manifest


def set_path(path: str, value):
    def change(raw):
        *parents, last = path.split("/")
        for name in parents:
            raw = raw[int(name) if name.isdigit() else name]
        raw[last] = value

    return change


def remove_path(path: str):
    def change(raw):
        *parents, last = path.split("/")
        for name in parents:
            raw = raw[int(name) if name.isdigit() else name]
        del raw[last]

    return change


WRONG = {
    "schema": set_path("schema", 2),
    "a step that is no number": set_path("step", "3"),
    "a negative step": set_path("step", -1),
    "a boolean step": set_path("step", True),
    "an unknown field": set_path("extra", 1),
    "a missing field": remove_path("run"),
    "values that are a list": set_path("values", []),
    "a file that is no object": set_path(f"files/{FILE}", 5),
    "a hash that is none": set_path(f"files/{FILE}/sha256", "zz"),
    "a size below zero": set_path(f"files/{FILE}/size", -5),
    "a dtype that is unknown": set_path("tensors/a/dtype", "quaternion"),
    "a dtype that is a module of torch": set_path("tensors/a/dtype", "hub"),
    "a shape with a fraction": set_path("tensors/a/shape", [4.0, 2]),
    "a chunk outside": set_path("tensors/a/chunks/1/offsets", [2, 0]),
    "a chunk of another rank": set_path("tensors/a/chunks/1/offsets", [1]),
    "chunks at one place": set_path("tensors/a/chunks/1/offsets", [0, 0]),
    "chunks that do not fill the tensor": set_path("tensors/a/chunks/1/sizes", [2, 2]),
    "no chunks": set_path("tensors/a/chunks", []),
    "an empty chunk": set_path(
        "tensors/empty/chunks", [{"offsets": [0, 0], "sizes": [0, 3], "file": FILE, "key": "e"}]
    ),
    "a chunk in an unlisted file": set_path("tensors/a/chunks/0/file", "rank-00001.safetensors"),
    "a chunk without a key": remove_path("tensors/a/chunks/0/key"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_manifest_that_contradicts_itself_is_refused(what):
    with pytest.raises(ManifestError):
        parse_manifest(forge(WRONG[what]))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data):
    with pytest.raises(ManifestError):
        parse_manifest(data)


@pytest.mark.parametrize("rest", [b"", b"}", b'"a":NaN', b"[" * 100_000, b'"a":' + b"[" * 100_000, b"\xff\xfe}"])
def test_a_right_hash_over_nonsense_is_refused(rest):
    with pytest.raises(ManifestError):
        parse_manifest(b'{"sha256":"' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest)
