"""A Hugging Face tokenizer.json: data that the `tokenizers` library interprets; nothing in it is executed."""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from monograph.errors import DataError
from monograph.system.foreign_json import UnusableFile, read_json, read_text
from monograph.system.foreign_text import show
from monograph.train.data.special_tokens import BOS_NAMES, EOS_NAMES, find_special, keep_plain, read_declared
from monograph.train.data.text_pieces import Pieces, find_pieces
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from monograph.train.data.tokenizer_faults import library_errors

MAX_BYTES = 512 << 20
"""Of a tokenizer.json; far above the largest."""
MAX_IDS = 1 << 24
"""Ids of a vocabulary; published ones have up to a million."""
LONG_CHARACTERS = 1 << 22
"""From here on a text is encoded in pieces, and of its pieces so many characters at a time."""
MAX_WHOLE_CHARACTERS = 1 << 24
"""Of a text or a piece that cannot be cut; it takes about 1.5 GiB."""
_EXCERPT = 60
_PROBES = ("", "a", "The quick  brown fox\n 1234567 isn't\té \u65e5\u672c \U0001f642!", "a" * 100)
_DO = "--tokenizer.path FILE"
_OTHER = f"take the text out, or use another tokenizer: {_DO}"


class HuggingFaceCodec:
    """A tokenizer.json, read by the `tokenizers` library."""

    def __init__(self, config: StandardTokenizerConfig) -> None:
        path = Path(config.path)
        self.path = path / "tokenizer.json" if path.is_dir() else path
        content = read_tokenizer_file(self.path)
        names = read_special_names(self.path.with_name("tokenizer_config.json"))
        digest = hashlib.sha256(content.encode("utf-8")).hexdigest()
        self.fingerprint = digest if config.allow_special else f"{digest} plain"
        self._tokenizer = parse_tokenizer(content, self.path)
        # Files often keep the settings that the model was trained with: limits would cut documents short without a
        # word, dropout would encode the same text differently on every rank.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if isinstance(self._tokenizer.model, tokenizers.models.BPE):
            self._tokenizer.model.dropout = None
        ids = self._tokenizer.get_vocab(with_added_tokens=True)
        if not ids:
            raise DataError(f"'{show(self.path)}' has no tokens", do=f"name a trained tokenizer.json: {_DO}")
        self.vocab_size = max(ids.values()) + 1
        if self.vocab_size > MAX_IDS:
            raise DataError(
                f"'{show(self.path)}' has the token id {self.vocab_size - 1}",
                why=f"a model has an embedding for every id up to the largest; more than {MAX_IDS} fit into none",
                do="use the file as it was published",
            )
        self.description = f"tokenizer {show(self.path)} with {self.vocab_size} ids"
        self._is_special: np.ndarray | None = None
        self._find_ends(config, names, ids)
        self._probe()

    def _find_ends(self, config: StandardTokenizerConfig, names: dict[str, Any], ids: dict[str, int]) -> None:
        """Find the tokens that begin and end documents; keep texts from writing special ones unless it is allowed."""
        self.bos_id = find_special("bos_token", config.bos_token, names, BOS_NAMES, ids)
        eos = find_special("eos_token", config.eos_token, names, EOS_NAMES, ids)
        if eos is None:
            raise DataError(
                f"'{show(self.path)}' does not say which token ends a document",
                why=f"no tokenizer_config.json beside it names one, and it has none of {', '.join(EOS_NAMES)}",
                do="--tokenizer.eos_token NAME",
            )
        self.eos_id = eos
        if config.allow_special:
            self.description += ", special tokens read from texts"
            return
        ends = [token for token in (self.bos_id, eos) if token is not None]
        with self._errors("cannot be used", hides_panics=True):
            self._is_special = keep_plain(self._tokenizer, read_declared(names), ends)

    def _probe(self) -> None:
        """Encode a few texts: most files that make the library panic do so with any text. Plain errors are for texts
        that have no tokens, which those of the dataset may have."""
        with self._errors("cannot encode texts", hides_panics=True):
            for text in _PROBES:
                with suppress(Exception):
                    ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
                    self._tokenizer.decode(ids, skip_special_tokens=True)

    def encode_all(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """The ids of each text."""
        is_long = any(len(text) > LONG_CHARACTERS for text in texts)
        yield from map(self._encode_long, texts) if is_long else self._encode_group(texts)

    def _encode_group(self, texts: Sequence[str]) -> Iterator[np.ndarray]:
        """The ids of texts that are encoded together."""
        try:
            with self._errors("cannot encode a text"):
                encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except DataError:
            if len(texts) == 1:
                raise
            encodings = [self._encode_alone(text) for text in texts]  # says which one it is
        for text, encoding in zip(texts, encodings, strict=True):
            ids = np.array(encoding.ids, dtype=np.uint32)
            if self._is_special is not None and self._is_special[ids].any():
                raise self._leaked(text, int(ids[self._is_special[ids]][0]))
            yield ids

    def _encode_long(self, text: str) -> np.ndarray:
        """The ids of a text in pieces, a few at a time: the library takes 90 times the memory of what it encodes."""
        if len(text) <= LONG_CHARACTERS:
            return next(self._encode_group([text]))
        pieces = self._pieces.cut(text) if self._pieces is not None else iter([text])
        found: list[np.ndarray] = []
        for group in _group_pieces(pieces):
            if max(map(len, group)) > MAX_WHOLE_CHARACTERS:
                raise self._too_long(text)
            found += self._encode_group(group)
        return np.concatenate(found)

    def _too_long(self, text: str) -> DataError:
        place = "no space between two letters" if self._pieces is not None else "no known place"
        return DataError(
            f"a text of {len(text):,} characters is too long to encode: {show(repr(text[:_EXCERPT]))} ...",
            why=f"there is {place} where {self.description} encodes both sides alone as it does the whole; in one go "
            "it would take 90 bytes of memory for each of text",
            do="--dataloader.document_separator STRING cuts text files into documents; cut other documents yourself",
        )

    @functools.cached_property
    def _pieces(self) -> Pieces | None:
        return find_pieces(self._tokenizer)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of these ids; special tokens say nothing."""
        with self._errors("cannot decode ids"):
            return self._tokenizer.decode(ids, skip_special_tokens=True)

    def _encode_alone(self, text: str) -> tokenizers.Encoding:
        with self._errors(f"cannot encode the text {show(repr(text[:_EXCERPT]))} ..."):
            return self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]

    def _errors(self, what: str, *, hides_panics: bool = False) -> AbstractContextManager[None]:
        return library_errors(f"'{show(self.path)}' {what}", do=_OTHER, hides_panics=hides_panics)

    def _leaked(self, text: str, token: int) -> DataError:
        name = show(repr(self._tokenizer.id_to_token(token)))
        return DataError(
            f"a text is encoded with the special token {name}: {show(repr(text[:_EXCERPT]))} ...",
            why=f"{self.description} has no other way to encode a part of it, and texts may not write special tokens",
            do="take the text out, or --tokenizer.allow_special true",
        )


def _group_pieces(pieces: Iterable[str]) -> Iterator[list[str]]:
    """Pieces that are encoded together: at most LONG_CHARACTERS, or one piece that is longer."""
    group: list[str] = []
    size = 0
    for piece in pieces:
        if group and size + len(piece) > LONG_CHARACTERS:
            yield group
            group, size = [], 0
        group.append(piece)
        size += len(piece)
    yield group


def parse_tokenizer(content: str, path: Path) -> tokenizers.Tokenizer:
    """The tokenizer that the text of a tokenizer.json describes."""
    with library_errors(
        f"'{show(path)}' is not a tokenizer.json", do=f"name a Hugging Face tokenizer.json: {_DO}", hides_panics=True
    ):
        return tokenizers.Tokenizer.from_str(content)


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
