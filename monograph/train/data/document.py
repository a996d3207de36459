"""A document: the unit that is shuffled, held out and never mixed with another one.

Where a document comes from (a file, a row, a stream) ends here; everything later sees text, a place to name in errors,
and a key made of the text itself.
"""

import hashlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monograph.errors import DataError, find_nearest
from monograph.system.foreign_text import show

KEY_BYTES = 8
CHAT_FIELDS = {"messages", "conversations", "conversation", "dialog", "dialogue", "turns", "chosen", "rejected"}
"""Fields of datasets of conversations."""
PAIR_FIELDS = {"completion", "response", "answer", "output"}
"""Fields of datasets of prompts with their answers, of which one alone is not the text to train on."""
_CHAT_GUIDE = "docs/guides/train_your_data.md#chat-and-assistant-data"
_OWN_TEXTS = (
    """write each document as {"text": "..."}, or a source of your own: docs/guides/own_data_and_optimizer.md"""
)


@dataclass(frozen=True, slots=True)
class Document:
    """One text and where it was found."""

    where: str
    """For messages: a file, a file and line, a row of a stream."""
    text: str
    """All of it."""
    place: tuple[int, ...] = ()
    """Of a stream: where reading begins anew with this document."""


@dataclass(frozen=True, slots=True)
class DocumentSource:
    """Documents in a stable order, as often as they are asked for."""

    description: str
    """What is read, for the log and for error messages."""
    read: Callable[[], Iterator[Document]]
    """Starts reading from the first document."""


def find_key(document: Document) -> int:
    """64 bits that stand for the text. Equal texts have equal keys wherever they lie, so a held-out document's
    copies are held out with it, and adding or moving files changes nothing for the others."""
    try:
        encoded = document.text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"{document.where}: the text is not valid Unicode",
            why=f"character {error.start} is one half of a surrogate pair",
            do="repair or remove this document",
        ) from None
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=KEY_BYTES).digest(), "little")


def find_text(row: Any, field: str, where: str) -> str:
    """The text of a row, or an error that names the fields the row does have."""
    if not isinstance(row, Mapping):
        raise DataError(
            f"{where}: expected an object with a field '{field}'",
            why=f"this is a {type(row).__name__}",
            do=f'write each document as {{"{field}": "..."}}',
        )
    if field not in row:
        texts = [str(name) for name, value in row.items() if isinstance(value, str)]
        raise missing_field(field, [str(name) for name in row], where, texts=texts)
    text = row[field]
    if not isinstance(text, str):
        raise DataError(
            f"{where}: field '{field}' is {type(text).__name__}, not text",
            why="only text can be tokenized",
            do="choose another field with --dataloader.text_field, or remove this row",
        )
    return text


def missing_field(field: str, names: list[str], where: str, *, texts: Sequence[str] = ()) -> DataError:
    """The error for a field that is not there, in the same words for rows and for columns.

    `texts` are the fields that hold text: only these are suggested.
    """
    near = find_nearest(field, texts)
    if near or len(texts) == 1:
        do = f"--dataloader.text_field {shlex.quote(near or texts[0])}"
    elif PAIR_FIELDS & {*names}:
        do = f"a prompt and its answer are one text here: {_OWN_TEXTS}; see {_CHAT_GUIDE}"
    elif texts:
        do = f"--dataloader.text_field NAME, one of: {', '.join(sorted(texts))}; {_OWN_TEXTS}"
    else:
        is_chat = bool(CHAT_FIELDS & {*names})
        do = f"a conversation is not one text: {_OWN_TEXTS}; see {_CHAT_GUIDE}" if is_chat else _OWN_TEXTS
    return DataError(
        f"{where}: there is no field '{field}'",
        why=show(f"it has {', '.join(sorted(names))}") if names else "it has no fields",
        do=show(do),
    )
