"""Opening token shards: everything index.json claims is checked before a token is used."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from monograph.errors import DataError
from monograph.log import get_log
from monograph.plurals import counted
from monograph.system.foreign_text import show
from monograph.train.data.corpus import CHUNK_DOCUMENTS, ContentHash, TokenCorpus, find_piece_starts
from monograph.train.data.file_checks import Check, FileCheck, FileChecker, check_here, damaged
from monograph.train.data.shard_index import INDEX, OFFSETS, ShardIndex, is_token_file, read_index
from monograph.train.data.token_file import MappedTable, TokenFile
from monograph.train.data.tokenizer import Tokenizer

BLOCK_TOKENS = 1 << 18
"""Tokens that are compared with the index at a time; larger blocks leave the caches."""
log = get_log(__name__)


def is_shard_folder(path: Path) -> bool:
    """Whether this is meant to be a folder of token shards, be it damaged."""
    try:
        return path.is_dir() and any(each.name == OFFSETS or is_token_file(each.name) for each in path.iterdir())
    except (OSError, ValueError):  # said by who reads it
        return False


def open_shards(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    verify: Literal["hashes", "sizes"] = "hashes",
    check_files: FileChecker = check_here,
) -> TokenCorpus:
    """Open a folder of shards. Sizes and the document table are always checked; 'hashes' also reads every token.

    `check_files` reads what is to be hashed. Ids above the index's largest are refused whenever tokens are read.
    """
    index = read_index(folder)
    if index.tokenizer_fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"'{show(folder)}' was packed with another tokenizer: {show(index.tokenizer_description)}",
            why=f"this run uses {tokenizer.description}, to which the same ids mean other text",
            do="the tokenizer of `monograph data pack` (--tokenizer.path, add_bos, eos_token, allow_special), or pack "
            "the data again",
        )
    corpus = _map_files(folder, index)
    _check_table(folder, index, corpus)
    total_bytes = sum(entry.bytes for entry in index.files)
    if verify == "hashes" and total_bytes > 1 << 30:
        log.info(
            "data: checking %.1f GiB of %s; --dataloader.verify_shards sizes skips this",
            total_bytes / 2**30,
            show(folder),
        )
    hashed = index.files if verify == "hashes" else (index.offsets, index.keys)
    checks: list[Check] = [FileCheck(folder / entry.name, entry.sha256) for entry in hashed]
    if verify == "hashes":  # first, since it is the longest
        checks.insert(0, _ContentCheck(folder / INDEX, index, corpus))
    check_files(checks)
    return corpus


def _map_files(folder: Path, index: ShardIndex) -> TokenCorpus:
    dtype = np.dtype(index.dtype).newbyteorder("<")
    pieces = [TokenFile(folder / entry.name, dtype, entry.bytes, index.max_token_id) for entry in index.token_files]
    offsets = MappedTable(folder / index.offsets.name, np.dtype("<i8"), index.offsets.bytes)
    keys = MappedTable(folder / index.keys.name, np.dtype("<u8"), index.keys.bytes)
    return TokenCorpus(
        pieces=pieces,
        offsets=offsets.values,
        keys=keys.values,
        piece_starts=find_piece_starts([len(piece) for piece in pieces]),
        max_token_id=index.max_token_id,
        content_hash=index.content_hash,
        description=f"{show(folder)} ({counted(len(pieces), 'token shard')} of {show(index.description)})",
        check_tables=offsets.check,
    )


@dataclass(frozen=True, slots=True)
class _ContentCheck:
    """Whether the tokens have the content hash and the largest id that the index says. One reader goes through all
    files: the hash covers the documents in their order."""

    path: Path
    """The index."""
    index: ShardIndex
    corpus: TokenCorpus

    def find_problem(self) -> DataError | None:
        """Read all tokens."""
        found, largest = ContentHash(np.dtype(self.index.dtype)), -1
        try:
            for start, tokens in _read_blocks(self.corpus):
                found.add_block(tokens, start, self.corpus.offsets)
                largest = max(largest, int(tokens.max()))
        except DataError as error:
            return error
        if largest != self.index.max_token_id:
            return damaged(self.path, f"max_token_id is {self.index.max_token_id}; the largest token is {largest}")
        if found.finish() != self.index.content_hash:
            return damaged(self.path, "content_hash is not that of the tokens")
        return None


def _read_blocks(corpus: TokenCorpus) -> Iterator[tuple[int, np.ndarray]]:
    """All tokens in pieces, each with the place where it starts."""
    for first, piece in zip(corpus.piece_starts.tolist(), corpus.pieces, strict=True):
        for start in range(0, len(piece), BLOCK_TOKENS):
            yield first + start, piece[start : start + BLOCK_TOKENS]


def _check_table(folder: Path, index: ShardIndex, corpus: TokenCorpus) -> None:
    """The document table must cover the token files exactly, and no document may lie across two files."""
    path, offsets = folder / index.offsets.name, corpus.offsets
    if len(offsets) != index.documents + 1 or len(corpus.keys) != index.documents or index.documents == 0:
        raise damaged(
            path,
            f"{counted(len(offsets), 'offset')} and {counted(len(corpus.keys), 'key')} for {index.documents} documents",
        )
    size = np.dtype(index.dtype).itemsize
    is_filled = sum(entry.bytes for entry in index.token_files) == index.tokens * size
    for entry in index.token_files:
        if entry.bytes % size:
            raise damaged(folder / entry.name, f"it has {entry.bytes} bytes, which are no whole tokens of {size}")
    if offsets[0] != 0 or int(offsets[-1]) != index.tokens or not is_filled or _has_empty_document(offsets):
        raise damaged(path, f"its documents do not fill the {index.tokens} tokens one after the other")
    indices = np.searchsorted(offsets, corpus.piece_starts)
    if np.any(offsets[indices] != corpus.piece_starts):
        raise damaged(path, "a document lies across two token files")


def _has_empty_document(offsets: np.ndarray) -> bool:
    """Whether some document has no tokens, or fewer; looked up in chunks so that this needs little memory."""
    chunks = (offsets[start : start + CHUNK_DOCUMENTS + 1] for start in range(0, len(offsets) - 1, CHUNK_DOCUMENTS))
    return any(bool(np.any(chunk[1:] <= chunk[:-1])) for chunk in chunks)
