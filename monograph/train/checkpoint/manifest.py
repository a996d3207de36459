"""The table of contents of a checkpoint: what every tensor is, where its pieces lie, and the hash of every file.

It is JSON, for people and programs alike, and it is never trusted before it is checked. Its first line holds the sha256
of all the bytes after that line, so a change anywhere in it is found before a single value is parsed.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MANIFEST_NAME = "manifest.json"
SCHEMA = 1
"""Raised when the layout changes in a way an older reader would misread."""

DTYPES = frozenset(
    {"float64", "float32", "float16", "bfloat16"}
    | {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}
    | {"int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"}
)
"""Names of the element types a checkpoint can hold, as torch spells them."""

_FIRST_LINE = re.compile(rb'\{"sha256":"([0-9a-f]{64})",\n')
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*\.safetensors")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ManifestError(Exception):
    """The manifest cannot be believed; the text says why."""


@dataclass(frozen=True)
class Chunk:
    """One stored box of a tensor: where it lies in the whole, and under which key of which file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    key: str


@dataclass(frozen=True)
class TensorRecord:
    """A whole tensor, however many ranks wrote pieces of it. One without elements has no chunks."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class FileRecord:
    """What a file must be, to the byte."""

    size: int
    sha256: str


@dataclass(frozen=True)
class CheckpointManifest:
    """`sequence` counts the checkpoints of a folder in the order they were committed, so that the newest is known even
    after a run went back to an earlier step. `run` stays the same over resumes: pruning touches one run's own only."""

    step: int
    sequence: int
    run: str
    values: Mapping[str, Any]
    tensors: Mapping[str, TensorRecord]
    files: Mapping[str, FileRecord]


def render_manifest(manifest: CheckpointManifest) -> bytes:
    """The file's bytes: one line per tensor and per file, so that it can be read and compared."""
    files = {name: {"size": file.size, "sha256": file.sha256} for name, file in manifest.files.items()}
    tensors = {name: _describe_tensor(tensor) for name, tensor in manifest.tensors.items()}
    fields = [
        f'"schema":{SCHEMA}',
        f'"step":{manifest.step}',
        f'"sequence":{manifest.sequence}',
        f'"run":{_dump(manifest.run)}',
        f'"values":{_dump(manifest.values)}',
        f'"files":{_dump_lines(files)}',
        f'"tensors":{_dump_lines(tensors)}',
    ]
    rest = (",\n".join(fields) + "\n}\n").encode()
    return b'{"sha256":"' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest


def parse_manifest(data: bytes) -> CheckpointManifest:
    """Check the hash, then every field; raises ManifestError."""
    first = _FIRST_LINE.match(data)
    if first is None:
        raise ManifestError("its first line is not the hash of the rest")
    if hashlib.sha256(data[first.end() :]).hexdigest().encode() != first[1]:
        raise ManifestError("its content does not have the hash it states")
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"it is not JSON: {error}") from None
    if raw.get("schema") != SCHEMA:
        raise ManifestError(f"its schema is {raw.get('schema')!r}; this version reads schema {SCHEMA}")
    fields = _take(
        raw,
        "the manifest",
        sha256=str,
        schema=int,
        step=int,
        sequence=int,
        run=str,
        values=dict,
        files=dict,
        tensors=dict,
    )
    manifest = CheckpointManifest(
        step=_natural(fields["step"], "step"),
        sequence=_natural(fields["sequence"], "sequence"),
        run=fields["run"],
        values=fields["values"],
        files={name: _parse_file(name, file) for name, file in fields["files"].items()},
        tensors={name: _parse_tensor(name, tensor) for name, tensor in fields["tensors"].items()},
    )
    _check_chunk_files(manifest)
    return manifest


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)


def _dump_lines(table: Mapping[str, Any]) -> str:
    lines = (f"{_dump(name)}:{_dump(table[name])}" for name in sorted(table))
    return "{\n" + ",\n".join(lines) + "\n}"


def _describe_tensor(tensor: TensorRecord) -> dict[str, Any]:
    chunks = [
        {"offsets": list(chunk.offsets), "sizes": list(chunk.sizes), "file": chunk.file, "key": chunk.key}
        for chunk in tensor.chunks
    ]
    return {"dtype": tensor.dtype, "shape": list(tensor.shape), "chunks": chunks}


def _take(raw: Any, where: str, **kinds: type) -> dict[str, Any]:
    """The fields of a JSON object, which must be exactly these, each of its kind."""
    if not isinstance(raw, dict) or set(raw) != set(kinds):
        raise ManifestError(f"{where} does not have exactly the fields {', '.join(kinds)}")
    for name, kind in kinds.items():
        if type(raw[name]) is not kind:
            raise ManifestError(f"{name} of {where} is not of type {kind.__name__}")
    return raw


def _natural(value: Any, where: str) -> int:
    if type(value) is not int or value < 0:
        raise ManifestError(f"{where} is {value!r}, not a natural number")
    return value


def _naturals(values: list[Any], where: str) -> tuple[int, ...]:
    return tuple(_natural(value, where) for value in values)


def _parse_file(name: str, raw: Any) -> FileRecord:
    if not _FILE_NAME.fullmatch(name):
        raise ManifestError(f"{name!r} is not the name of a checkpoint file")
    fields = _take(raw, name, size=int, sha256=str)
    if not _SHA256.fullmatch(fields["sha256"]):
        raise ManifestError(f"the sha256 of {name} is not one")
    return FileRecord(_natural(fields["size"], f"the size of {name}"), fields["sha256"])


def _parse_tensor(name: str, raw: Any) -> TensorRecord:
    fields = _take(raw, name, dtype=str, shape=list, chunks=list)
    if fields["dtype"] not in DTYPES:
        raise ManifestError(f"the dtype of {name} is {fields['dtype']!r}, which is not known")
    shape = _naturals(fields["shape"], f"the shape of {name}")
    chunks = tuple(_parse_chunk(name, chunk, shape) for chunk in fields["chunks"])
    if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
        raise ManifestError(f"the chunks of {name} do not add up to its shape")
    if len({chunk.offsets for chunk in chunks}) != len(chunks):
        raise ManifestError(f"two chunks of {name} lie at the same place")
    return TensorRecord(fields["dtype"], shape, chunks)


def _parse_chunk(name: str, raw: Any, shape: tuple[int, ...]) -> Chunk:
    fields = _take(raw, f"a chunk of {name}", offsets=list, sizes=list, file=str, key=str)
    offsets = _naturals(fields["offsets"], f"an offset of {name}")
    sizes = _naturals(fields["sizes"], f"a size of {name}")
    inside = all(offset + size <= full for offset, size, full in zip(offsets, sizes, shape, strict=False))
    if not len(offsets) == len(sizes) == len(shape) or not inside or not math.prod(sizes):
        raise ManifestError(f"a chunk of {name} lies outside its shape")
    return Chunk(offsets, sizes, fields["file"], fields["key"])


def _check_chunk_files(manifest: CheckpointManifest) -> None:
    for name, tensor in manifest.tensors.items():
        for chunk in tensor.chunks:
            if chunk.file not in manifest.files:
                raise ManifestError(f"{name} lies in {chunk.file!r}, which is not listed")
