"""Token shards: a tokenized corpus on disk, of which each sample reads its part. Written once, opened at once by all.

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
import re
import uuid
from array import array
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

import numpy as np

from monograph.log import get_log
from monograph.system.foreign_text import show
from monograph.system.own_file import create_own, naming
from monograph.system.own_tree import find_foreign, is_plain_folder, remove_made, replace_folder
from monograph.train.data.corpus import ContentHash
from monograph.train.data.shard_index import INDEX, KEYS, OFFSETS, FileEntry, ShardIndex, is_token_file, list_files
from monograph.train.data.tokenizer import Tokenizer

SHARD_TOKENS = 1 << 28
"""Tokens after which a new file is begun."""
WAITING_DOCUMENTS = 1 << 16
"""Documents whose offset and key are written together."""
KIND = "a folder of token shards"
log = get_log(__name__)


class HashedFile:
    """A file being written, whose size and hash are known when it is closed."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()
        self._file = stack.enter_context(os.fdopen(create_own(path), "wb"))

    def write(self, values: np.ndarray) -> None:
        data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        with naming(self.path):
            self._file.write(data)
        self._hash.update(data)
        self.size += len(data)

    def close(self) -> FileEntry:
        """Put it on the disk for good."""
        with naming(self.path):
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
        with suppress(OSError):  # what could not be written is tried once more by closing, and was told by its name
            self._stack.close()
        remove_made(self._temporary)

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
        path = self._temporary / INDEX
        with naming(path), open(create_own(path), "w", encoding="utf-8") as file:
            json.dump(index.to_json(), file, indent=1, allow_nan=False)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(self._temporary)
        replace_folder(self._temporary, self.folder, KIND, list_files)
        sync_folder(self.folder.parent)
        return index

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


def remove_leftovers(folder: Path) -> None:
    """Delete what killed writers of `folder` left beside it. The caller holds the lock of its name: no other writes.

    A replaced folder is deleted once the new one has its name; until then it is the only copy.
    """
    name = re.escape(folder.name)
    names = [rf"\.{name}\.writing-[0-9a-f]{{8}}", *([rf"\.old-{name}-[0-9a-f]{{8}}"] if folder.exists() else [])]
    for path in sorted(folder.parent.iterdir()):
        if not re.fullmatch("|".join(names), path.name) or not is_plain_folder(path):
            continue
        try:
            known = {each for each in os.listdir(path) if each in (INDEX, OFFSETS, KEYS) or is_token_file(each)}
            foreign = find_foreign(path, known)
        except OSError as error:
            foreign = [str(error)]
        if foreign:
            log.warning("data: %s is left as it is: %s is not ours", show(path), show(", ".join(foreign)))
        else:
            remove_made(path)
            log.info("data: removed %s, which a writer that was killed had left", show(path))
