"""The way from documents to tokens, shared by everything that reads text: corpora in memory and packed shards."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import numpy as np

from monograph.errors import DataError
from monograph.log import get_log
from monograph.plurals import counted
from monograph.train.data.document import Document, find_key
from monograph.train.data.tokenizer import Tokenizer

BATCH_DOCUMENTS = 512
BATCH_CHARACTERS = 1 << 22
"""Handed to the tokenizer at once, so that it can use several cores without holding much text."""
PROGRESS_SECONDS = 5.0

log = get_log(__name__)


class TokenSink(Protocol):
    """Takes tokenized documents one after the other."""

    def add(self, tokens: np.ndarray, key: int) -> None: ...


class Documents(Protocol):
    """What can be read from the first document on."""

    @property
    def description(self) -> str: ...
    @property
    def read(self) -> Callable[[], Iterator[Document]]: ...


class Progress:
    """Says every few seconds how far a long load has come; a short one stays silent."""

    def __init__(self, what: str, *, every_seconds: float = PROGRESS_SECONDS) -> None:
        self.what, self.every_seconds = what, every_seconds
        self.documents = self.tokens = 0
        self.started = self._said = time.monotonic()

    def add(self, tokens: int) -> None:
        """Count one document."""
        self.documents += 1
        self.tokens += tokens
        now = time.monotonic()
        if now - self._said >= self.every_seconds:
            self._said = now
            rate = self.tokens / (now - self.started)
            log.info(
                "data: %s: %s documents, %s tokens, %s tokens/s",
                self.what,
                *map(count, (self.documents, self.tokens, rate)),
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


def count(number: float) -> str:
    """A count for people: 950, 12.3k, 4.5M, 6.7G."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if number >= size:
            return f"{number / (1e3 if unit == 'k' else size):.1f}{unit}"
    return str(int(number))


def count_noun(number: int, noun: str) -> str:
    """`1 document`, `12.3k documents`: a count for people with its noun."""
    return f"{count(number)} {noun if number == 1 else f'{noun}s'}"


def batched(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Documents in groups; those without text are left out, since they have nothing to learn."""
    group: list[Document] = []
    characters = 0
    for document in documents:
        if not document.text:
            continue
        group.append(document)
        characters += len(document.text)
        if len(group) >= BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


def tokenize(documents: Iterable[Document], tokenizer: Tokenizer) -> Iterator[tuple[np.ndarray, int]]:
    """The framed tokens and the key of each document."""
    for group in batched(documents):
        keys = [find_key(document) for document in group]
        yield from zip(tokenizer.encode_documents([document.text for document in group]), keys, strict=True)


def tokenize_into(sink: TokenSink, source: Documents, tokenizer: Tokenizer) -> Progress:
    """Tokenize a whole source; an empty one is an error."""
    progress = Progress(f"reading {source.description}")
    read = 0

    def count_read() -> Iterator[Document]:
        nonlocal read
        for document in source.read():
            read += 1
            yield document

    for tokens, key in tokenize(count_read(), tokenizer):
        sink.add(tokens, key)
        progress.add(len(tokens))
    if not progress.documents:
        raise DataError(
            f"the dataset is empty: {source.description}",
            why="no document in it has any text",
            do="name files that hold text: --dataloader.dataset PATH",
        )
    if empty := read - progress.documents:
        log.info("data: %s: leaving out %s without text", source.description, counted(empty, "document"))
    return progress
