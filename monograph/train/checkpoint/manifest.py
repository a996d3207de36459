"""The table of contents of a checkpoint: what every tensor is, where its pieces lie, and the hash of every file.

It is JSON, for people and programs alike, and it is never trusted before it is checked. Its first line holds the sha256
of all the bytes after that line, so a change anywhere in it is found before a single value is parsed.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monograph.manifest.fields import (
    MAX_BYTES,
    Check,
    FileRecord,
    ManifestError,
    dictionary,
    integer,
    listing,
    mapping,
    one_of,
    read_files,
    record,
    string,
)
from monograph.manifest.sealed import open_sealed, parse_sealed, seal
from monograph.system.foreign_json import UnusableFile, parse_json
from monograph.train.checkpoint.hf_assets import ASSET_NAMES

MANIFEST_NAME = "manifest.json"
SCHEMA = 1
"""Raised when the layout changes in a way an older reader would misread."""

DTYPES = frozenset(
    {"float64", "float32", "float16", "bfloat16"}
    | {"float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"}
    | {"int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"}
)
"""Names of the element types a checkpoint can hold, as torch spells them."""

TENSOR_FILE_ENDING = ".safetensors"
_FILE_NAME = re.compile("|".join((r"[A-Za-z0-9][A-Za-z0-9_-]*\.safetensors", *map(re.escape, ASSET_NAMES))))
"""Files of tensors, and those of a tokenizer that came with an imported model."""
_natural = integer(0, MAX_BYTES)
_chunk = record({"offsets": listing(_natural), "sizes": listing(_natural), "file": string, "key": string})
_tensor = record({"dtype": one_of(DTYPES), "shape": listing(_natural), "chunks": listing(_chunk)})
_head: dict[str, Check] = {
    **{"sha256": string, "schema": _natural, "step": _natural, "sequence": _natural, "run": string},
    "values": dictionary,
}
_manifest_head = record(_head)
_manifest = record({**_head, "files": dictionary, "tensors": dictionary})
_VALUES: dict[str, Check] = {
    **{"step": _natural, "tokens": _natural, "global_batch": _natural},
    **{"model": dictionary, "cursor": dictionary, "settings": mapping(dictionary)},
    **{"data": dictionary, "revisions": dictionary, "lr_plan": dictionary},
}
"""Plain values of a run that readers take apart; whoever saves others checks them."""
_AFTER_HEAD, _AFTER_FILES = b',\n"files":{', b',\n"tensors":{'
"""Stand nowhere else: inside of names and values a line break is written as \\n."""


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
class ManifestHead:
    """`sequence` counts the checkpoints of a folder in the order they were committed, so that the newest is known even
    after a run went back to an earlier step. `run` stays the same over resumes: pruning touches one run's own only."""

    step: int
    sequence: int
    run: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class CheckpointManifest(ManifestHead):
    """All of it: with many ranks there are a hundred thousand pieces, which take seconds to read."""

    tensors: Mapping[str, TensorRecord]
    files: Mapping[str, FileRecord]


def render_manifest(manifest: CheckpointManifest) -> bytes:
    """The file's bytes: one line per tensor and per file, so that it can be read and compared."""
    files = {name: file.to_data() for name, file in manifest.files.items()}
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
    return seal((",\n".join(fields) + "\n}\n").encode())


def parse_head(data: bytes) -> ManifestHead:
    """What a manifest says besides its tensors, in no time; the hash of all of it is checked. Raises ManifestError."""
    open_sealed(data)
    head, end, _ = data.partition(_AFTER_HEAD)
    if not end:  # laid out in another way than ours
        return parse_manifest(data)
    raw = parse_sealed(head + b"}", schema=SCHEMA)
    _manifest_head(raw, "the manifest")
    _check_values(raw["values"])
    return ManifestHead(raw["step"], raw["sequence"], raw["run"], raw["values"])


def parse_file_names(data: bytes) -> frozenset[str]:
    """Names of all files of a checkpoint, the manifest too, without reading its tensors. Raises ManifestError."""
    open_sealed(data)
    listed, end, _ = data.partition(_AFTER_HEAD)[2].partition(_AFTER_FILES)
    try:
        files = parse_json(b"{" + listed, "its files", kind=dict) if end else dict(parse_manifest(data).files)
    except UnusableFile as error:
        raise ManifestError(error.why) from None
    return frozenset((MANIFEST_NAME, *files))


def parse_manifest(data: bytes) -> CheckpointManifest:
    """Check the hash, then every field; raises ManifestError."""
    open_sealed(data)
    raw = parse_sealed(data, schema=SCHEMA)
    _manifest(raw, "the manifest")
    _check_values(raw["values"])
    manifest = CheckpointManifest(
        step=raw["step"],
        sequence=raw["sequence"],
        run=raw["run"],
        values=raw["values"],
        files=read_files(raw["files"], "files", _FILE_NAME),
        tensors={name: _parse_tensor(name, tensor) for name, tensor in raw["tensors"].items()},
    )
    _check_chunk_files(manifest)
    return manifest


def _check_values(values: Mapping[str, Any]) -> None:
    for name, check in _VALUES.items():
        if name in values:
            check(values[name], f"values.{name}")


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


def _parse_tensor(name: str, raw: Any) -> TensorRecord:
    _tensor(raw, name)
    shape = tuple(raw["shape"])
    chunks = tuple(_parse_chunk(name, chunk, shape) for chunk in raw["chunks"])
    if sum(math.prod(chunk.sizes) for chunk in chunks) != math.prod(shape):
        raise ManifestError(f"the chunks of {name} do not add up to its shape")
    if len({chunk.offsets for chunk in chunks}) != len(chunks):
        raise ManifestError(f"two chunks of {name} lie at the same place")
    return TensorRecord(raw["dtype"], shape, chunks)


def _parse_chunk(name: str, raw: Any, shape: tuple[int, ...]) -> Chunk:
    offsets, sizes = tuple(raw["offsets"]), tuple(raw["sizes"])
    inside = all(offset + size <= full for offset, size, full in zip(offsets, sizes, shape, strict=False))
    if not len(offsets) == len(sizes) == len(shape) or not inside or not math.prod(sizes):
        raise ManifestError(f"a chunk of {name} lies outside its shape")
    return Chunk(offsets, sizes, raw["file"], raw["key"])


def _check_chunk_files(manifest: CheckpointManifest) -> None:
    for name, tensor in manifest.tensors.items():
        for chunk in tensor.chunks:
            if chunk.file not in manifest.files:
                raise ManifestError(f"{name} lies in {chunk.file!r}, which is not listed")
