"""A tokenized corpus with random access: documents as slices of a few large arrays, in memory or mapped from disk."""

import hashlib
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

PIECE_TOKENS = 1 << 25
"""Tokens in one array of an in-memory corpus: growing it never copies what is already there."""
CHUNK_DOCUMENTS = 1 << 20
"""Documents looked at together where all of them are looked at."""


class Tokens(Protocol):
    """A row of uint16 or uint32 tokens: an array, or a file that is read when it is sliced."""

    def __len__(self) -> int: ...
    def __getitem__(self, part: slice, /) -> np.ndarray: ...


def _no_check() -> None:
    """Tables in memory cannot be cut."""


@dataclass(frozen=True, slots=True)
class TokenCorpus:
    """Documents one after the other. A document lies whole in one piece."""

    pieces: Sequence[Tokens]
    """Several, so that no file or allocation must hold everything."""
    offsets: np.ndarray
    """int64 [documents + 1]: where each document starts, counted through all pieces."""
    keys: np.ndarray
    """uint64 [documents]: the keys of the texts (document.find_key)."""
    piece_starts: np.ndarray
    """int64 [pieces]: where each piece starts."""
    max_token_id: int
    """The largest token that occurs."""
    content_hash: str
    """sha256 over tokens and borders: two corpora with the same hash train the same."""
    description: str
    """What it is, in words."""
    check_tables: Callable[[], None] = _no_check
    """Raises DataError when `offsets` are mapped from a file that has been cut."""

    @property
    def document_count(self) -> int:
        return len(self.keys)

    @property
    def token_count(self) -> int:
        return int(self.offsets[-1])

    def find_lengths(self, documents: np.ndarray) -> np.ndarray:
        """Tokens in each of these documents."""
        self.check_tables()
        documents = documents.astype(np.int64)
        return self.offsets[documents + 1] - self.offsets[documents]

    def count_tokens(self, documents: np.ndarray) -> int:
        """Tokens in all of these documents, counted in chunks so that this needs little memory."""
        chunks = range(0, len(documents), CHUNK_DOCUMENTS)
        return sum(int(self.find_lengths(documents[start : start + CHUNK_DOCUMENTS]).sum()) for start in chunks)

    def read(self, document: int, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop` of one document."""
        self.check_tables()
        offset = int(self.offsets[document])
        piece = int(np.searchsorted(self.piece_starts, offset, side="right")) - 1
        offset -= int(self.piece_starts[piece])
        return self.pieces[piece][offset + start : offset + stop]


class ContentHash:
    """The running hash of a corpus; the same whether it is kept in memory or written to shards."""

    def __init__(self, dtype: np.dtype) -> None:
        self._hash = hashlib.sha256(f"monograph tokens {dtype.name}\n".encode())

    def add(self, tokens: np.ndarray) -> None:
        self._hash.update(len(tokens).to_bytes(8, "little"))
        self._hash.update(tokens.astype(tokens.dtype.newbyteorder("<"), copy=False).tobytes())

    def add_block(self, tokens: np.ndarray, start: int, offsets: np.ndarray) -> None:
        """Append tokens from place `start` on, which may begin and end in the middle of documents.

        `offsets` says where each document of the corpus starts.
        """
        first, last = np.searchsorted(offsets[:-1], (start, start + len(tokens)))
        dtype = tokens.dtype.newbyteorder("<")
        lengths = (offsets[first + 1 : last + 1] - offsets[first:last]).astype("<i8").view(dtype)
        places = np.repeat(offsets[first:last] - start, 8 // dtype.itemsize)
        self._hash.update(np.insert(tokens.astype(dtype, copy=False), places, lengths).data)

    def finish(self) -> str:
        return self._hash.hexdigest()


class CorpusBuilder:
    """Collects tokenized documents into a TokenCorpus held in memory."""

    def __init__(self, dtype: np.dtype, *, piece_tokens: int = PIECE_TOKENS) -> None:
        self.dtype = dtype
        self._piece_tokens = piece_tokens
        self._pieces: list[np.ndarray] = []
        self._waiting: list[np.ndarray] = []
        self._waiting_tokens = 0
        self._offsets = array("q", [0])
        self._keys = array("Q")
        self._max_token_id = -1
        self._hash = ContentHash(dtype)

    def add(self, tokens: np.ndarray, key: int) -> None:
        """Append one document."""
        if self._waiting and self._waiting_tokens + len(tokens) > self._piece_tokens:
            self._close_piece()
        self._waiting.append(tokens)
        self._waiting_tokens += len(tokens)
        self._offsets.append(self._offsets[-1] + len(tokens))
        self._keys.append(key)
        self._max_token_id = max(self._max_token_id, int(tokens.max()))
        self._hash.add(tokens)

    def finish(self, description: str) -> TokenCorpus:
        """The corpus of everything added."""
        self._close_piece()
        sizes = [len(piece) for piece in self._pieces]
        return TokenCorpus(
            pieces=self._pieces,
            offsets=np.frombuffer(self._offsets, dtype=np.int64),
            keys=np.frombuffer(self._keys, dtype=np.uint64),
            piece_starts=find_piece_starts(sizes),
            max_token_id=self._max_token_id,
            content_hash=self._hash.finish(),
            description=description,
        )

    def _close_piece(self) -> None:
        if self._waiting:
            self._pieces.append(np.concatenate(self._waiting))
            self._waiting, self._waiting_tokens = [], 0


def find_piece_starts(sizes: Sequence[int]) -> np.ndarray:
    """Where each piece starts when they lie one after the other."""
    return (
        np.concatenate(([0], np.cumsum(sizes[:-1], dtype=np.int64))).astype(np.int64)
        if sizes
        else np.zeros(0, np.int64)
    )


def find_token_dtype(vocab_size: int) -> np.dtype:
    """The smallest stored type that holds every id."""
    return np.dtype(np.uint16) if vocab_size <= 1 << 16 else np.dtype(np.uint32)
