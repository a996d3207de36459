"""A Hugging Face tokenizer.json: data that the `tokenizers` library interprets; nothing in it is executed."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from monograph.errors import DataError
from monograph.system.foreign_json import UnusableFile, read_json, read_text
from monograph.system.foreign_text import show
from monograph.train.data.special_tokens import BOS_NAMES, EOS_NAMES, find_special, keep_plain, read_declared
from monograph.train.data.tokenizer_config import StandardTokenizerConfig

MAX_BYTES = 512 << 20
"""Of a tokenizer.json; far above the largest."""
_EXCERPT = 60


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
                f"'{show(path)}' is not a tokenizer.json",
                why=show(error),
                do="name a Hugging Face tokenizer.json: --tokenizer.path FILE",
            ) from None
        # Files often keep the limits of the model they were made for, which would cut documents short without a word.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        if not ids:
            raise DataError(f"'{show(path)}' has no tokens", do="name a trained tokenizer.json: --tokenizer.path FILE")
        self.vocab_size = max(ids.values()) + 1
        names = read_special_names(path.with_name("tokenizer_config.json"))
        bos = find_special("bos_token", config.bos_token, names, BOS_NAMES, ids)
        eos = find_special("eos_token", config.eos_token, names, EOS_NAMES, ids)
        if eos is None:
            raise DataError(
                f"'{show(path)}' does not say which token ends a document",
                why=f"no tokenizer_config.json beside it names one, and it has none of {', '.join(EOS_NAMES)}",
                do="--tokenizer.eos_token NAME",
            )
        self.bos_id, self.eos_id = bos, eos
        digest = hashlib.sha256(content.encode("utf-8")).hexdigest()
        self.fingerprint = digest if config.allow_special else f"{digest} plain"
        self.description = f"tokenizer {show(path)} with {self.vocab_size} ids"
        self._is_special: np.ndarray | None = None
        if config.allow_special:
            self.description += ", special tokens read from texts"
        else:
            self._is_special = keep_plain(
                self._tokenizer, read_declared(names), [token for token in (bos, eos) if token is not None]
            )

    def encode_all(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """The ids of each text."""
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            ids = np.array(encoding.ids, dtype=np.uint32)
            if self._is_special is not None and self._is_special[ids].any():
                raise self._leaked(text, int(ids[self._is_special[ids]][0]))
            yield ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids; special tokens say nothing."""
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _leaked(self, text: str, token: int) -> DataError:
        name = show(repr(self._tokenizer.id_to_token(token)))
        return DataError(
            f"a text is encoded with the special token {name}: {show(repr(text[:_EXCERPT]))} ...",
            why=f"{self.description} has no other way to encode a part of it, and texts may not write special tokens",
            do="take the text out, or --tokenizer.allow_special true",
        )


def read_tokenizer_file(path: Path) -> str:
    """The text of a tokenizer.json."""
    try:
        return read_text(path, max_bytes=MAX_BYTES)
    except (OSError, UnusableFile) as error:
        raise DataError(
            f"cannot read the tokenizer '{show(path)}'",
            why=show(error.why if isinstance(error, UnusableFile) else error),
            do="name a tokenizer.json (--tokenizer.path FILE), or leave it out for the built-in byte tokenizer",
        ) from None


def read_special_names(path: Path) -> dict[str, Any]:
    """What tokenizer_config.json says; an absent file says nothing."""
    try:
        content: dict[str, Any] = read_json(path, max_bytes=MAX_BYTES)
    except FileNotFoundError:
        if not path.is_symlink():
            return {}
        raise DataError(
            f"cannot read '{show(path)}'", why="the link leads nowhere", do="repair it, or move it away"
        ) from None
    except (OSError, UnusableFile) as error:
        reason = error.why if isinstance(error, UnusableFile) else error
        raise DataError(f"cannot read '{show(path)}'", why=show(reason), do="repair it, or move it away") from None
    return content
