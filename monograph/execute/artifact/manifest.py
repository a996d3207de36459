"""The first file of an artifact: what it was made for, and the hash of every other file. Loads without torch.

It is JSON, for people and programs alike. The first line is the sha256 of everything after it, so that a changed byte
is found before anything is parsed; the second is the signature of everything after that, empty without a key.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monograph.errors import ConfigError

MANIFEST = "manifest.json"
SCHEMA = 1
"""Raised when the layout changes in a way an older reader would misread."""
SECTIONS = (
    "config",
    "mesh",
    "groups",
    "table",
    "inputs",
    "passes",
    "digests",
    "parts",
    "versions",
    "environment",
    "machine",
)
"""What a manifest says besides its files, in this order."""

_FIRST = re.compile(rb'\{"sha256":"([0-9a-f]{64})",\n')
_SECOND = re.compile(rb'"hmac":"([0-9a-f]{64})?",\n')
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PIECE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"{_PIECE}(/{_PIECE}){{0,3}}")


class ArtifactError(ConfigError):
    """An artifact that is damaged, or that nobody vouches for; nothing of it was used."""


@dataclass(frozen=True)
class FileRecord:
    """What a file must be, to the byte."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What an artifact says about itself."""

    sections: Mapping[str, Any]
    files: Mapping[str, FileRecord]
    digest: str
    """The sha256 in the first line: equal exactly for equal artifacts."""
    is_signed: bool


def render_manifest(sections: Mapping[str, Any], files: Mapping[str, FileRecord], key: bytes | None) -> bytes:
    """The file's bytes; the same for the same content."""
    listed = {name: {"size": files[name].size, "sha256": files[name].sha256} for name in sorted(files)}
    content = {"schema": SCHEMA, **{name: sections[name] for name in SECTIONS}, "files": listed}
    lines = [f"{json.dumps(name)}:{json.dumps(value, allow_nan=False)}" for name, value in content.items()]
    rest = (",\n".join(lines) + "\n}\n").encode()
    signature = "" if key is None else hmac.new(key, rest, hashlib.sha256).hexdigest()
    rest = f'"hmac":"{signature}",\n'.encode() + rest
    return f'{{"sha256":"{hashlib.sha256(rest).hexdigest()}",\n'.encode() + rest


def parse_manifest(data: bytes, key: bytes | None) -> Manifest:
    """Check the hash and, with a key, the signature; then every field."""
    first = _FIRST.match(data)
    second = _SECOND.match(data, first.end()) if first else None
    if first is None or second is None:
        raise ArtifactError("the artifact's manifest is damaged", why="it does not begin with its hash and signature")
    if hashlib.sha256(data[first.end() :]).hexdigest().encode() != first[1]:
        raise ArtifactError("the artifact's manifest is damaged", why="it does not have the hash it states")
    check_signature(data[second.end() :], second[1], key)
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ArtifactError("the artifact's manifest is damaged", why=f"it is not JSON: {error}") from None
    if content.get("schema") != SCHEMA:
        raise ArtifactError(
            f"the artifact's schema is {content.get('schema')!r:.40}; this version reads schema {SCHEMA}",
            do="precompile again with this version",
        )
    missing = [name for name in (*SECTIONS, "files") if name not in content]
    if missing or not isinstance(content["files"], dict):
        raise ArtifactError("the artifact's manifest is damaged", why=f"it has no {', '.join(missing) or 'files'}")
    files = {name: _parse_file(name, file) for name, file in content["files"].items()}
    sections = {name: content[name] for name in SECTIONS}
    return Manifest(sections, files, first[1].decode(), bool(second[1]))


def check_signature(signed: bytes, found: bytes | None, key: bytes | None) -> None:
    """With a key, only what was signed with it is believed."""
    if key is None:
        return
    if not found:
        raise ArtifactError(
            "the artifact is not signed, and a key is set",
            why="with a key, only artifacts signed with it are loaded",
            do="precompile it again where the key is set, or unset the key",
        )
    if not hmac.compare_digest(hmac.new(key, signed, hashlib.sha256).hexdigest().encode(), found):
        raise ArtifactError(
            "the artifact's signature is not that of your key",
            why="it was signed with another key, or changed afterwards",
            do="get it from where it was made, or precompile it again",
        )


def _parse_file(name: str, raw: Any) -> FileRecord:
    """A name that stays inside of the folder, a size and a hash."""
    is_record = isinstance(raw, dict) and type(raw.get("size")) is int and isinstance(raw.get("sha256"), str)
    if not _NAME.fullmatch(name) or not is_record or not _SHA256.fullmatch(raw["sha256"]):
        raise ArtifactError("the artifact's manifest is damaged", why=f"it lists a file as {name!r:.80}")
    return FileRecord(raw["size"], raw["sha256"])
