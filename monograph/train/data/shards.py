"""Token shards: a tokenized corpus on disk, read by mapping it into memory. Written once, opened at once by all.

A folder holds

    index.json          what is in it; every other file with its size and sha256
    tokens-00000.bin    the tokens, little-endian uint16 or uint32, documents one after the other, nothing between them;
    tokens-00001.bin    a document never lies across two files
    offsets.bin         little-endian int64 [documents + 1]: where each document starts, counted through all token files
    keys.bin            little-endian uint64 [documents]: the keys that decide what is held out

The folder is written under another name and renamed when everything is on the disk, so it is whole or not there.
"""

import hashlib
import json
import os
import shutil
import uuid
from array import array
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from monograph.errors import DataError
from monograph.train.data.corpus import ContentHash
from monograph.train.data.tokenizer import Tokenizer

INDEX = "index.json"
FORMAT = "monograph-tokens"
VERSION = 1
CHECKSUM = "checksum"
OFFSETS, KEYS = "offsets.bin", "keys.bin"
SHARD_TOKENS = 1 << 28
"""Tokens after which a new file is begun."""
WAITING_DOCUMENTS = 1 << 16
"""Documents whose offset and key are written together."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file beside the index."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Everything index.json says."""

    dtype: str
    """uint16 or uint32."""
    documents: int
    tokens: int
    max_token_id: int
    content_hash: str
    description: str
    tokenizer_fingerprint: str
    tokenizer_description: str
    token_files: tuple[FileEntry, ...]
    offsets: FileEntry
    keys: FileEntry

    def to_json(self) -> dict[str, Any]:
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return content | {CHECKSUM: find_checksum(content)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The index that `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        if content[CHECKSUM] != find_checksum(content):
            raise ValueError(f"its {CHECKSUM} does not fit what it says")
        values = {name: kind(content[name]) for name, kind in FIELD_KINDS.items()}
        index = cls(**values)
        if index.dtype not in ("uint16", "uint32"):
            raise ValueError(f"dtype is {index.dtype!r}")
        for entry in (*index.token_files, index.offsets, index.keys):
            if Path(entry.name).name != entry.name or entry.name == INDEX:
                raise ValueError(f"'{entry.name}' is not the name of a file in this folder")
        return index


def find_checksum(content: dict[str, Any]) -> str:
    """The hash of an index without its own checksum, so that a change in the index is found like one in the tokens."""
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("utf-8")).hexdigest()


def as_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def as_count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def as_file(value: object) -> FileEntry:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} does not describe a file")
    return FileEntry(as_text(value["name"]), as_count(value["bytes"]), as_text(value["sha256"]))


def as_files(value: object) -> tuple[FileEntry, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list of files")
    return tuple(as_file(entry) for entry in value)


FIELD_KINDS: dict[str, Any] = {
    "dtype": as_text,
    "documents": as_count,
    "tokens": as_count,
    "max_token_id": as_count,
    "content_hash": as_text,
    "description": as_text,
    "tokenizer_fingerprint": as_text,
    "tokenizer_description": as_text,
    "token_files": as_files,
    "offsets": as_file,
    "keys": as_file,
}


class HashedFile:
    """A file being written, whose size and hash are known when it is closed."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._file = stack.enter_context(path.open("xb"))

    def write(self, values: np.ndarray) -> None:
        data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def close(self) -> FileEntry:
        """Put it on the disk for good."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return FileEntry(self.path.name, self.size, self._hash.hexdigest())


class ShardWriter:
    """Writes tokenized documents into a new folder of shards. Use as a context; `finish` makes the folder appear, and
    leaving without it leaves nothing behind."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, *, shard_tokens: int = SHARD_TOKENS) -> None:
        self.folder, self.tokenizer, self.shard_tokens = folder, tokenizer, shard_tokens
        self.dtype = tokenizer.dtype
        self._temporary = folder.with_name(f".{folder.name}.writing-{uuid.uuid4().hex[:8]}")
        self._stack = ExitStack()
        self._entries: list[FileEntry] = []
        self._file: HashedFile | None = None
        self._file_tokens = self._tokens = self._documents = 0
        self._waiting_offsets, self._waiting_keys = array("q", [0]), array("Q")
        self._max_token_id = -1
        self._hash = ContentHash(self.dtype)

    def __enter__(self) -> Self:
        self._temporary.mkdir(parents=True)
        self._offsets = HashedFile(self._temporary / OFFSETS, self._stack)
        self._keys = HashedFile(self._temporary / KEYS, self._stack)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def add(self, tokens: np.ndarray, key: int) -> None:
        """Append one document."""
        if self._file is None or self._file_tokens + len(tokens) > self.shard_tokens:
            self._next_file()
        assert self._file is not None
        self._file.write(tokens)
        self._file_tokens += len(tokens)
        self._tokens += len(tokens)
        self._documents += 1
        self._max_token_id = max(self._max_token_id, int(tokens.max()))
        self._hash.add(tokens)
        self._waiting_offsets.append(self._tokens)
        self._waiting_keys.append(key)
        if len(self._waiting_keys) >= WAITING_DOCUMENTS:
            self._write_waiting()

    def finish(self, description: str) -> ShardIndex:
        """Write the index and put the folder in its place."""
        self._close_file()
        self._write_waiting()
        index = ShardIndex(
            dtype=self.dtype.name,
            documents=self._documents,
            tokens=self._tokens,
            max_token_id=self._max_token_id,
            content_hash=self._hash.finish(),
            description=description,
            tokenizer_fingerprint=self.tokenizer.fingerprint,
            tokenizer_description=self.tokenizer.description,
            token_files=tuple(self._entries),
            offsets=self._offsets.close(),
            keys=self._keys.close(),
        )
        with (self._temporary / INDEX).open("x", encoding="utf-8") as file:
            json.dump(index.to_json(), file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._temporary)
        self._put_in_place()
        return index

    def _put_in_place(self) -> None:
        old = self._temporary.with_name(f"{self._temporary.name}.old")
        if self.folder.exists():
            check_replaceable(self.folder)
            self.folder.rename(old)
        self._temporary.rename(self.folder)
        sync_folder(self.folder.parent)
        shutil.rmtree(old, ignore_errors=True)

    def _write_waiting(self) -> None:
        self._offsets.write(np.array(self._waiting_offsets, np.int64))
        self._keys.write(np.array(self._waiting_keys, np.uint64))
        del self._waiting_offsets[:], self._waiting_keys[:]

    def _close_file(self) -> None:
        if self._file is not None:
            self._entries.append(self._file.close())

    def _next_file(self) -> None:
        self._close_file()
        self._file = HashedFile(self._temporary / f"tokens-{len(self._entries):05d}.bin", self._stack)
        self._file_tokens = 0


def sync_folder(folder: Path) -> None:
    """Make renames and new names in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_replaceable(folder: Path) -> None:
    """Only token shards, or nothing, may be overwritten by token shards."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else {str(folder)}
    known = {INDEX, OFFSETS, KEYS}
    foreign = sorted(name for name in names if name not in known and not name.startswith("tokens-"))
    if foreign:
        raise DataError(
            f"will not overwrite '{folder}'",
            why=f"it holds other files too: {', '.join(foreign[:5])}",
            do="choose another folder",
        )
