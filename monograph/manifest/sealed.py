"""JSON that states its own hash: the first line is the sha256 of all the bytes after it.

So a change anywhere is found before a single value is parsed. Checkpoints and artifacts have their manifests so.
"""

import hashlib
import re
from typing import Any, NamedTuple

from monograph.manifest.fields import ManifestError
from monograph.system.foreign_json import UnusableFile, parse_json

_FIRST_LINE = re.compile(rb'\{"sha256":"([0-9a-f]{64})",\n')


class OtherSchema(ManifestError):
    """The manifest is whole, and of another version of the layout."""


class SealedText(NamedTuple):
    """What is in a manifest whose hash is right."""

    digest: str
    rest: bytes
    """Everything after the first line."""


def seal(rest: bytes) -> bytes:
    """The file's bytes: the hash of `rest`, then `rest`, the fields of a JSON object without its opening brace."""
    return b'{"sha256":"' + hashlib.sha256(rest).hexdigest().encode() + b'",\n' + rest


def open_sealed(data: bytes) -> SealedText:
    """Check the hash; nothing is parsed before."""
    first = _FIRST_LINE.match(data)
    if first is None:
        raise ManifestError("its first line is not the hash of the rest")
    rest = data[first.end() :]
    if hashlib.sha256(rest).hexdigest().encode() != first[1]:
        raise ManifestError("it does not have the hash it states")
    return SealedText(first[1].decode(), rest)


def parse_sealed(data: bytes, *, schema: int) -> dict[str, Any]:
    """The fields of a manifest whose hash was found right; each of them still has to be checked."""
    try:
        content = parse_json(data, "the manifest", kind=dict)
    except UnusableFile as error:
        raise ManifestError(error.why) from None
    found = content.get("schema")
    if type(found) is not int or found != schema:
        raise OtherSchema(f"its schema is {found!r:.40}; this version reads schema {schema}")
    return content
