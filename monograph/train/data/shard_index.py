"""index.json of a folder of token shards: which files there are, what they hold, and their hashes."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from monograph.system.foreign_json import UnusableFile, read_json
from monograph.train.data.file_checks import damaged

INDEX = "index.json"
FORMAT = "monograph-tokens"
VERSION = 1
CHECKSUM = "checksum"
OFFSETS, KEYS = "offsets.bin", "keys.bin"
_TOKENS = re.compile(r"tokens-[0-9]{5,9}\.bin")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file beside the index."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """Everything index.json says."""

    dtype: str
    """uint16 or uint32."""
    documents: int
    tokens: int
    max_token_id: int
    content_hash: str
    description: str
    tokenizer_fingerprint: str
    tokenizer_description: str
    token_files: tuple[FileEntry, ...]
    offsets: FileEntry
    keys: FileEntry

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """All files beside the index."""
        return (*self.token_files, self.offsets, self.keys)

    def to_json(self) -> dict[str, Any]:
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return content | {CHECKSUM: find_checksum(content)}

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """The index that `to_json` wrote. Raises KeyError, TypeError or ValueError for anything else."""
        if content[CHECKSUM] != find_checksum(content):
            raise ValueError(f"its {CHECKSUM} does not fit what it says")
        values = {name: kind(content[name]) for name, kind in _FIELD_KINDS.items()}
        index = cls(**values)
        if index.dtype not in ("uint16", "uint32"):
            raise ValueError(f"dtype is {index.dtype!r}")
        if (index.offsets.name, index.keys.name) != (OFFSETS, KEYS):
            raise ValueError(f"offsets and keys are in {index.offsets.name!r} and {index.keys.name!r}")
        names = [entry.name for entry in index.token_files]
        for name in names:
            if not is_token_file(name) or names.count(name) > 1:
                raise ValueError(f"{name!r} is not the name of a token file, or is listed twice")
        return index


def is_token_file(name: str) -> bool:
    """Whether a file of tokens may have this name."""
    return _TOKENS.fullmatch(name) is not None


def find_checksum(content: dict[str, Any]) -> str:
    """The hash of an index without its own checksum, so that a change in the index is found like one in the tokens."""
    rest = {name: value for name, value in content.items() if name != CHECKSUM}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode("utf-8")).hexdigest()


def read_index(folder: Path) -> ShardIndex:
    """What index.json says, once it makes sense."""
    path = folder / INDEX
    try:
        content = read_json(path)
        if content.get("format") != FORMAT:
            raise ValueError(f"format is not {FORMAT!r}")
        if content["version"] != VERSION:
            raise ValueError(f"version {content['version']} is unknown to this release, which reads version {VERSION}")
        return ShardIndex.from_json(content)
    except UnusableFile as error:
        raise damaged(path, error.why) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = f"'{error.args[0]}' is missing" if isinstance(error, KeyError) else str(error)
        raise damaged(path, reason) from None


def list_files(folder: Path) -> set[str]:
    """Names of all files of a folder of token shards, the index too."""
    return {INDEX, *(entry.name for entry in read_index(folder).files)}


def _as_text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


def _as_count(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value


def _as_file(value: object) -> FileEntry:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} does not describe a file")
    return FileEntry(_as_text(value["name"]), _as_count(value["bytes"]), _as_text(value["sha256"]))


def _as_files(value: object) -> tuple[FileEntry, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list of files")
    return tuple(_as_file(entry) for entry in value)


_FIELD_KINDS: dict[str, Any] = {
    "dtype": _as_text,
    "documents": _as_count,
    "tokens": _as_count,
    "max_token_id": _as_count,
    "content_hash": _as_text,
    "description": _as_text,
    "tokenizer_fingerprint": _as_text,
    "tokenizer_description": _as_text,
    "token_files": _as_files,
    "offsets": _as_file,
    "keys": _as_file,
}
