"""Opening token shards: everything index.json claims is checked before a token is used."""

import json
from pathlib import Path
from typing import Literal

import numpy as np

from monograph.errors import DataError
from monograph.log import get_log
from monograph.plurals import counted
from monograph.train.data.corpus import CHUNK_DOCUMENTS, TokenCorpus, find_piece_starts
from monograph.train.data.file_checks import FileCheck, FileChecker, check_here, damaged
from monograph.train.data.shards import FORMAT, INDEX, OFFSETS, VERSION, FileEntry, ShardIndex
from monograph.train.data.tokenizer import Tokenizer

log = get_log(__name__)


def is_shard_folder(path: Path) -> bool:
    """Whether this is meant to be a folder of token shards, be it damaged."""
    return path.is_dir() and ((path / OFFSETS).exists() or any(path.glob("tokens-*.bin")))


def open_shards(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    verify: Literal["hashes", "sizes"] = "hashes",
    check_files: FileChecker = check_here,
) -> TokenCorpus:
    """Map a folder of shards. Sizes and the document table are always checked; 'hashes' also reads every token.

    `check_files` reads what is to be hashed.
    """
    index = read_index(folder)
    if index.tokenizer_fingerprint != tokenizer.fingerprint:
        raise DataError(
            f"'{folder}' was packed with another tokenizer: {index.tokenizer_description}",
            why=f"this run uses {tokenizer.description}, to which the same ids mean other text",
            do="the tokenizer of `monograph data pack` (--tokenizer.path, add_bos, eos_token, allow_special), or pack "
            "the data again",
        )
    entries = (*index.token_files, index.offsets, index.keys)
    for entry in entries:
        check_size(folder, entry)
    total_bytes = sum(entry.bytes for entry in entries)
    if verify == "hashes" and total_bytes > 1 << 30:
        log.info(
            "data: checking %.1f GiB of %s; --dataloader.verify_shards sizes skips this", total_bytes / 2**30, folder
        )
    hashed = entries if verify == "hashes" else (index.offsets, index.keys)
    check_files([FileCheck(folder / entry.name, entry.sha256) for entry in hashed])
    dtype = np.dtype(index.dtype).newbyteorder("<")
    sizes = [entry.bytes // dtype.itemsize for entry in index.token_files]
    corpus = TokenCorpus(
        pieces=[map_file(folder / entry.name, dtype) for entry in index.token_files],
        offsets=map_file(folder / index.offsets.name, np.dtype("<i8")),
        keys=map_file(folder / index.keys.name, np.dtype("<u8")),
        piece_starts=find_piece_starts(sizes),
        max_token_id=index.max_token_id,
        content_hash=index.content_hash,
        description=f"{folder} ({counted(len(sizes), 'token shard')} of {index.description})",
    )
    check_table(folder, index, corpus, sizes)
    return corpus


def map_file(path: Path, dtype: np.dtype) -> np.ndarray:
    """The file as an array that the system reads page by page; an empty file cannot be mapped and is damage."""
    try:
        return np.asarray(np.memmap(path, dtype, mode="r"))
    except (OSError, ValueError) as error:
        raise damaged(path, str(error)) from None


def read_index(folder: Path) -> ShardIndex:
    """What index.json says, once it makes sense."""
    path = folder / INDEX
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"format is not {FORMAT!r}")
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']} is unknown to this release, which reads version {VERSION}")
        return ShardIndex.from_json(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
        raise damaged(path, reason) from None


def check_size(folder: Path, entry: FileEntry) -> None:
    """The cheap check, which finds files that are gone or cut off."""
    path = folder / entry.name
    try:
        size = path.stat().st_size
    except OSError as error:
        raise damaged(path, str(error)) from None
    if size != entry.bytes:
        raise damaged(path, f"it has {size} bytes and should have {entry.bytes}")


def check_table(folder: Path, index: ShardIndex, corpus: TokenCorpus, sizes: list[int]) -> None:
    """The document table must cover the token files exactly, and no document may lie across two files."""
    path = folder / index.offsets.name
    offsets = corpus.offsets
    if len(offsets) != index.documents + 1 or len(corpus.keys) != index.documents or index.documents == 0:
        raise damaged(
            path,
            f"{counted(len(offsets), 'offset')} and {counted(len(corpus.keys), 'key')} for {index.documents} documents",
        )
    if offsets[0] != 0 or int(offsets[-1]) != index.tokens or sum(sizes) != index.tokens or has_empty_document(offsets):
        raise damaged(path, f"its documents do not fill the {index.tokens} tokens one after the other")
    indices = np.searchsorted(offsets, corpus.piece_starts)
    if np.any(offsets[indices] != corpus.piece_starts):
        raise damaged(path, "a document lies across two token files")


def has_empty_document(offsets: np.ndarray) -> bool:
    """Whether some document has no tokens, or fewer; looked up in chunks so that this needs little memory."""
    chunks = (offsets[start : start + CHUNK_DOCUMENTS + 1] for start in range(0, len(offsets) - 1, CHUNK_DOCUMENTS))
    return any(bool(np.any(chunk[1:] <= chunk[:-1])) for chunk in chunks)
