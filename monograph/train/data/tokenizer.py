"""Text to token ids and back: bytes as they are, or a Hugging Face tokenizer.json."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from monograph.config.configurable import Configurable
from monograph.errors import DataError
from monograph.train.data.corpus import find_token_dtype
from monograph.train.data.special_tokens import BOS_NAMES
from monograph.train.data.tokenizer_config import StandardTokenizerConfig, TokenizerConfig
from monograph.train.data.tokenizer_json import HuggingFaceCodec


class Codec(Protocol):
    """How one kind of tokenizer does its work, without the frame around a document."""

    vocab_size: int
    """One more than the largest id."""
    bos_id: int | None
    eos_id: int
    fingerprint: str
    """Changes when the same text would give other ids."""
    description: str

    def encode_all(self, texts: Sequence[str]) -> Iterable[Sequence[int] | np.ndarray]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class Tokenizer(Configurable):
    """Turns documents into arrays of ids: [bos] text eos. A tokenizer of your own defines `open_codec` alone."""

    Config = TokenizerConfig

    def __init__(self, config: TokenizerConfig) -> None:
        self.config: Any = config
        codec = self.open_codec()
        if config.add_bos and codec.bos_id is None:
            raise DataError(
                "tokenizer.add_bos is set but the tokenizer has no bos token",
                why=f"{codec.description} names none and has none of {', '.join(BOS_NAMES)}",
                do="--tokenizer.bos_token NAME, or --tokenizer.add_bos False",
            )
        self._codec = codec
        self.vocab_size = codec.vocab_size
        self.bos_id, self.eos_id = codec.bos_id, codec.eos_id
        self.dtype = find_token_dtype(codec.vocab_size)
        self.description = codec.description
        frame = f"{codec.fingerprint} bos={codec.bos_id if config.add_bos else None} eos={codec.eos_id}"
        self.fingerprint = hashlib.sha256(frame.encode("utf-8")).hexdigest()

    def open_codec(self) -> Codec:
        """What turns text into ids, as `self.config` says."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define open_codec()")

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text alone, without special tokens around it."""
        (ids,) = self._codec.encode_all([text])
        return np.asarray(ids, dtype=self.dtype)

    def encode_documents(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of whole documents, each ended by eos (and begun by bos when asked for)."""
        head = [self.bos_id] if self.config.add_bos else []
        framed = []
        for ids in self._codec.encode_all(texts):
            tokens = np.empty(len(head) + len(ids) + 1, dtype=self.dtype)
            tokens[: len(head)] = head
            tokens[len(head) : -1] = ids
            tokens[-1] = self.eos_id
            framed.append(tokens)
        return framed

    def decode(self, ids: Iterable[int]) -> str:
        """The text of these ids; special tokens say nothing."""
        return self._codec.decode([int(token) for token in ids])


class StandardTokenizer(Tokenizer):
    """Bytes, or a Hugging Face tokenizer.json."""

    Config = StandardTokenizerConfig

    def open_codec(self) -> Codec:
        """The tokenizer.json at `path`, else bytes."""
        return HuggingFaceCodec(self.config) if self.config.path else ByteCodec()


class ByteCodec:
    """Every byte of the UTF-8 text is a token. Works on any text, needs no files."""

    bos_id: int | None = 256
    eos_id = 257
    pad_id = 258
    vocab_size = 259
    fingerprint = "bytes-1"
    description = "byte tokenizer"

    def encode_all(self, texts: Sequence[str]) -> Iterable[np.ndarray]:
        return (np.frombuffer(text.encode("utf-8"), dtype=np.uint8) for text in texts)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode("utf-8", errors="replace")
