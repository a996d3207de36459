"""Data and a tokenizer of your own, used by flags alone.

monograph train llama3_debugmodel --dataloader.source examples.own_data:Paragraphs --dataloader.source.path README.md
monograph train llama3_debugmodel --dataloader.source examples.own_data:Sums --dataloader.source.digits 3
monograph train llama3_debugmodel --tokenizer examples.own_data:Characters
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from monograph.labels import IGNORED_LABEL
from monograph.train.data.document import Document
from monograph.train.data.indexed_source import IndexedSource
from monograph.train.data.sample import Sample
from monograph.train.data.source import SamplePlan
from monograph.train.data.text_source import TextSource
from monograph.train.data.tokenizer import Codec, Tokenizer


class Paragraphs(TextSource):
    """Every paragraph of a text file is a document; the base class tokenizes, splits, shuffles and packs them."""

    @dataclass(kw_only=True, slots=True)
    class Config(TextSource.Config):
        """Paragraphs of a text file."""

        path: str
        """The file."""

    @property
    def description(self) -> str:
        """What is read, for the log."""
        return f"paragraphs of {self.config.path}"

    def read(self) -> Iterator[Document]:
        """The paragraphs in their order."""
        for number, text in enumerate(Path(self.config.path).read_text(encoding="utf-8").split("\n\n")):
            yield Document(f"{self.config.path}, paragraph {number}", text.strip())


class Sums(IndexedSource):
    """Finished samples by number, as named arrays: `17+25=42;` again and again, and only sums are learned.

    A model that reads other names (latents, pixels) is fed in the same way.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(IndexedSource.Config):
        """Sums of random numbers."""

        digits: int = 2
        """Digits of each number."""
        samples: int = 10_000
        """Sequences in an epoch."""

    def count(self, plan: SamplePlan) -> int:
        """How many samples there are."""
        return self.config.samples

    def load(self, index: int, plan: SamplePlan) -> Sample:
        """Sample number `index`: nothing but the number decides it, so any rank can make it, at any time."""
        numbers, text, learned = np.random.default_rng(index), b"", []
        while len(text) <= plan.seq_len:
            left, right = numbers.integers(10**self.config.digits, size=2)
            question, answer = f"{left}+{right}=".encode(), f"{left + right};".encode()
            text += question + answer
            learned += [False] * len(question) + [True] * len(answer)
        tokens = np.frombuffer(text, dtype=np.uint8).astype(np.int64)
        labels = np.where(learned, tokens, IGNORED_LABEL)
        positions = np.arange(plan.seq_len)
        return {
            "tokens": tokens[: plan.seq_len],
            "labels": labels[1 : plan.seq_len + 1],
            "positions": positions,
            "documents": np.zeros_like(positions),
        }


class Characters(Tokenizer):
    """A token for each character of an alphabet, and one for all others."""

    @dataclass(kw_only=True, slots=True)
    class Config(Tokenizer.Config):
        """Characters of an alphabet."""

        alphabet: str = " \nabcdefghijklmnopqrstuvwxyz0123456789.,:;()[]{}'\"=+-*/_#"
        """The characters that have a token."""

    def open_codec(self) -> Codec:
        """What turns text into ids and back."""
        return CharacterCodec(self.config.alphabet)


class CharacterCodec:
    """Ids of characters: 0 ends a document, 1 stands for characters without an id."""

    bos_id, eos_id = None, 0

    def __init__(self, alphabet: str) -> None:
        self.characters = "\0?" + alphabet
        self.vocab_size = len(self.characters)
        self.fingerprint = hashlib.sha256(alphabet.encode()).hexdigest()
        self.description = f"{len(alphabet)} characters"

    def encode_all(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        """The ids of each text."""
        ids = {character: number for number, character in enumerate(self.characters)}
        return ([ids.get(character, 1) for character in text.lower()] for text in texts)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids."""
        return "".join(self.characters[number] for number in ids if number)
