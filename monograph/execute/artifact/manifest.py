"""The first file of an artifact: what it was made for, and the hash of every other file. Loads without torch.

It is JSON, for people and programs alike. The first line is the sha256 of everything after it, so that a changed byte
is found before anything is parsed; the second is the signature of everything after that, empty without a key.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monograph.errors import ConfigError
from monograph.execute.artifact.fields import KERNELS, OWN_KERNELS, REGIONS, SECTIONS, BadField, check_content
from monograph.execute.artifact.keys import Signature, Status, find_fingerprint, is_signed_with, sign

MANIFEST = "manifest.json"
SCHEMA = 1
"""Raised when the layout changes in a way an older reader would misread."""

_FIRST = re.compile(rb'\{"sha256":"([0-9a-f]{64})",\n')
_SECOND = re.compile(rb'"hmac":"([0-9a-f]{64})?",\n')


class ArtifactError(ConfigError):
    """An artifact that is damaged, or that nobody vouches for; nothing of it was used."""


@dataclass(frozen=True)
class ArtifactFile:
    """What a file must be, to the byte."""

    size: int
    sha256: str


@dataclass(frozen=True)
class ArtifactManifest:
    """What an artifact says about itself."""

    sections: Mapping[str, Any]
    files: Mapping[str, ArtifactFile]
    digest: str
    """The sha256 in the first line: equal exactly for equal artifacts."""
    signature: Signature

    @property
    def has_compiled_parts(self) -> bool:
        """Whether a graph calls code that a compiler made."""
        return any(self.sections["parts"].values())

    @property
    def code_files(self) -> list[str]:
        """The files whose content would be run."""
        return [name for name in self.files if name.startswith((REGIONS, KERNELS, OWN_KERNELS))]


@dataclass(frozen=True)
class Envelope:
    """A manifest's bytes, once its hash is right: the signature, and what is signed."""

    digest: str
    signature: bytes
    signed: bytes


def render_manifest(sections: Mapping[str, Any], files: Mapping[str, ArtifactFile], key: bytes | None) -> bytes:
    """The file's bytes; the same for the same content."""
    listed = {name: {"size": files[name].size, "sha256": files[name].sha256} for name in sorted(files)}
    content = {"schema": SCHEMA, **{name: sections[name] for name in SECTIONS}, "files": listed}
    lines = [f"{json.dumps(name)}:{json.dumps(value, allow_nan=False)}" for name, value in content.items()]
    return seal((",\n".join(lines) + "\n}\n").encode(), key)


def seal(signed: bytes, key: bytes | None) -> bytes:
    """A manifest with its signature, if there is a key, and its hash."""
    signature = "" if key is None else sign(signed, key)
    rest = f'"hmac":"{signature}",\n'.encode() + signed
    return f'{{"sha256":"{hashlib.sha256(rest).hexdigest()}",\n'.encode() + rest


def open_envelope(data: bytes) -> Envelope:
    """Check the hash; nothing is parsed before."""
    first = _FIRST.match(data)
    second = _SECOND.match(data, first.end()) if first else None
    if first is None or second is None:
        raise damaged("it does not begin with its hash and signature")
    if hashlib.sha256(data[first.end() :]).hexdigest().encode() != first[1]:
        raise damaged("it does not have the hash it states")
    return Envelope(first[1].decode(), second[1] or b"", data[second.end() :])


def parse_manifest(data: bytes, key: bytes | None) -> ArtifactManifest:
    """Check the hash and, with a key, the signature; then every field."""
    envelope = open_envelope(data)
    signature = check_signature(envelope, key)
    try:
        content = json.loads(data, object_pairs_hook=_read_object, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise damaged(f"it is not JSON: {error}") from None
    if content.get("schema") != SCHEMA or type(content["schema"]) is not int:
        raise ArtifactError(
            f"the artifact's schema is {content.get('schema')!r:.40}; this version reads schema {SCHEMA}",
            do="precompile again with this version",
        )
    try:
        check_content(content)
    except BadField as error:
        raise damaged(str(error)) from None
    files = {name: ArtifactFile(entry["size"], entry["sha256"]) for name, entry in content["files"].items()}
    sections = {name: content[name] for name in SECTIONS}
    return ArtifactManifest(sections, files, envelope.digest, signature)


def damaged(why: str) -> ArtifactError:
    """The error about a manifest that cannot be used."""
    return ArtifactError(
        "the artifact's manifest is damaged", why=why, do="copy the artifact again, or precompile it again"
    )


def _read_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is there twice")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def check_signature(envelope: Envelope, key: bytes | None) -> Signature:
    """What is known of the signature; with a key, only what was signed with it is believed."""
    if key is None:
        return Signature(Status.UNVERIFIED if envelope.signature else Status.UNSIGNED)
    fingerprint = find_fingerprint(key)
    if not envelope.signature:
        raise ArtifactError(
            "the artifact is unsigned, and a key is set",
            why=f"with a key, only artifacts signed with it are used; the key is {fingerprint}",
            do="monograph artifact sign DIR, if you know who made it; or unset the key",
        )
    if not is_signed_with(envelope.signed, envelope.signature, key):
        raise ArtifactError(
            "the artifact's signature does not match",
            why=f"it was not signed with key {fingerprint}, or it was changed afterwards",
            do="use the key it was signed with, or get the artifact again from where it was made",
        )
    return Signature(Status.VERIFIED, fingerprint)
