"""The first file of an artifact: what it was made for, and the hash of every other file. Loads without torch.

It is JSON, for people and programs alike. The first line is the sha256 of everything after it, so that a changed byte
is found before anything is parsed; the second is the signature of everything after that, empty without a key.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from monograph.errors import ConfigError
from monograph.execute.artifact.fields import FILE_NAME, KERNELS, OWN_KERNELS, REGIONS, SECTIONS, check_content
from monograph.execute.artifact.keys import Signature, Status, find_fingerprint, is_signed_with, sign
from monograph.manifest import sealed
from monograph.manifest.fields import FileRecord, ManifestError, read_files

MANIFEST = "manifest.json"
SCHEMA = 1
"""Raised when the layout changes in a way an older reader would misread."""

_SECOND = re.compile(rb'"hmac":"([0-9a-f]{64})?",\n')


class ArtifactError(ConfigError):
    """An artifact that is damaged, or that nobody vouches for; nothing of it was used."""


@dataclass(frozen=True)
class ArtifactManifest:
    """What an artifact says about itself."""

    sections: Mapping[str, Any]
    files: Mapping[str, FileRecord]
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


def render_manifest(sections: Mapping[str, Any], files: Mapping[str, FileRecord], key: bytes | None) -> bytes:
    """The file's bytes; the same for the same content."""
    listed = {name: files[name].to_data() for name in sorted(files)}
    content = {"schema": SCHEMA, **{name: sections[name] for name in SECTIONS}, "files": listed}
    lines = [f"{json.dumps(name)}:{json.dumps(value, allow_nan=False)}" for name, value in content.items()]
    return seal((",\n".join(lines) + "\n}\n").encode(), key)


def seal(signed: bytes, key: bytes | None) -> bytes:
    """A manifest with its signature, if there is a key, and its hash."""
    signature = "" if key is None else sign(signed, key)
    return sealed.seal(f'"hmac":"{signature}",\n'.encode() + signed)


def open_envelope(data: bytes) -> Envelope:
    """Check the hash; nothing is parsed before."""
    try:
        digest, rest = sealed.open_sealed(data)
    except ManifestError as error:
        raise damaged(str(error)) from None
    second = _SECOND.match(rest)
    if second is None:
        raise damaged("its second line is not its signature")
    return Envelope(digest, second[1] or b"", rest[second.end() :])


def parse_manifest(data: bytes, key: bytes | None) -> ArtifactManifest:
    """Check the hash and, with a key, the signature; then every field."""
    envelope = open_envelope(data)
    signature = check_signature(envelope, key)
    try:
        content = sealed.parse_sealed(data, schema=SCHEMA)
        check_content(content)
        files = read_files(content["files"], "files", FILE_NAME)
    except sealed.OtherSchema as error:
        raise ArtifactError(
            "the artifact is of another version", why=str(error), do="precompile again with this version"
        ) from None
    except ManifestError as error:
        raise damaged(str(error)) from None
    sections = {name: content[name] for name in SECTIONS}
    return ArtifactManifest(sections, files, envelope.digest, signature)


def damaged(why: str) -> ArtifactError:
    """The error about a manifest that cannot be used."""
    return ArtifactError(
        "the artifact's manifest is damaged", why=why, do="copy the artifact again, or precompile it again"
    )


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
