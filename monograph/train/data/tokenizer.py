"""Text to token ids and back: bytes as they are, or a Hugging Face tokenizer.json.

A tokenizer.json is data that the `tokenizers` library interprets; nothing in it, or beside it, is executed.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tokenizers

from monograph.config.configurable import Configurable
from monograph.errors import DataError, did_you_mean
from monograph.train.data.corpus import find_token_dtype
from monograph.train.data.tokenizer_config import StandardTokenizerConfig, TokenizerConfig

BOS_NAMES = ("<|begin_of_text|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>", "[BOS]")  # noqa: RUF001
EOS_NAMES = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<｜end▁of▁sentence｜>", "[EOS]")  # noqa: RUF001
"""What published tokenizers call their special tokens."""


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


class HuggingFaceCodec:
    """A tokenizer.json, read by the `tokenizers` library."""

    def __init__(self, config: StandardTokenizerConfig) -> None:
        path = Path(config.path)
        path = path / "tokenizer.json" if path.is_dir() else path
        content = read_tokenizer_file(path)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the library raises plain Exception
            raise DataError(
                f"'{path}' is not a tokenizer.json",
                why=str(error),
                do="name a Hugging Face tokenizer.json: --tokenizer.path FILE",
            ) from None
        # Files often keep the limits of the model they were made for, which would cut documents short without a word.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        if not ids:
            raise DataError(f"'{path}' has no tokens", do="name a trained tokenizer.json: --tokenizer.path FILE")
        self.vocab_size = max(ids.values()) + 1
        names = read_special_names(path.with_name("tokenizer_config.json"))
        bos = find_special("bos_token", config.bos_token, names, BOS_NAMES, ids)
        eos = find_special("eos_token", config.eos_token, names, EOS_NAMES, ids)
        if eos is None:
            raise DataError(
                f"'{path}' does not say which token ends a document",
                why=f"no tokenizer_config.json beside it names one, and it has none of {', '.join(EOS_NAMES)}",
                do="--tokenizer.eos_token NAME",
            )
        self.bos_id, self.eos_id = bos, eos
        self.fingerprint = hashlib.sha256(content.encode("utf-8")).hexdigest()
        self.description = f"tokenizer {path} with {self.vocab_size} ids"

    def encode_all(self, texts: Sequence[str]) -> Iterable[Sequence[int]]:
        return (encoding.ids for encoding in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)


def read_tokenizer_file(path: Path) -> str:
    """The text of a tokenizer.json."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read the tokenizer '{path}'",
            why=str(error),
            do="name a tokenizer.json (--tokenizer.path FILE), or leave it out for the built-in byte tokenizer",
        ) from None


def read_special_names(path: Path) -> dict[str, Any]:
    """What tokenizer_config.json says; an absent file says nothing."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"cannot read '{path}'", why=str(error), do="repair it, or move it away") from None
    return content if isinstance(content, dict) else {}


def find_special(
    role: str, chosen: str, names: dict[str, Any], usual: Sequence[str], ids: dict[str, int]
) -> int | None:
    """The id of a special token: what the user chose, else what tokenizer_config.json names, else a usual name."""
    named = names.get(role)
    named = named.get("content") if isinstance(named, dict) else named
    for name, origin in ((chosen, f"--tokenizer.{role}"), (named, "tokenizer_config.json")):
        if name and name not in ids:
            nearest = did_you_mean(name, [token for token in ids if token.startswith(("<", "["))])
            raise DataError(f"the tokenizer has no token {name!r}", why=f"{origin} names it as the {role}", do=nearest)
        if name:
            return ids[name]
    return next((ids[name] for name in usual if name in ids), None)
