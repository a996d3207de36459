"""An artifact on disk: it appears whole or not at all, and no byte of it is used before its hash was checked.

Loads without torch, so that a run that cannot use its artifact says so at once.
"""

import hashlib
import os
import secrets
import stat
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from monograph.errors import ConfigError
from monograph.execute.artifact.fields import FILE_NAME
from monograph.execute.artifact.keys import is_signed_with
from monograph.execute.artifact.manifest import (
    MANIFEST,
    ArtifactError,
    ArtifactManifest,
    open_envelope,
    parse_manifest,
    render_manifest,
    seal,
)
from monograph.manifest.fields import FileRecord, read_files
from monograph.permissions import find_writer, read_acl
from monograph.system.foreign_json import parse_json
from monograph.system.own_file import create_own, naming
from monograph.system.own_tree import check_replaceable, remove_made, replace_folder

MAX_MANIFEST_BYTES = 256 << 20
MAX_FILE_BYTES = 2 << 30
"""Files are read into memory before their hash is known, and sizes are what a manifest says."""


def write_artifact(
    target: Path,
    sections: Mapping[str, object],
    files: Mapping[str, bytes],
    *,
    key: bytes | None = None,
    overwrite: bool = False,
) -> None:
    """Write an artifact; readers never see a part of it."""
    records = {name: FileRecord(len(data), hashlib.sha256(data).hexdigest()) for name, data in files.items()}
    manifest = render_manifest(sections, records, key)
    write_folder(target, [*files.items(), (MANIFEST, manifest)], overwrite=overwrite)


def write_folder(target: Path, files: Iterable[tuple[str, bytes]], *, overwrite: bool) -> None:
    """Write everything beside `target` and give it its name at the end."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prepared = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    prepared.mkdir(mode=0o755)
    try:
        for name, content in files:
            _write_file(prepared / name, content)
        for folder in (*(path for path in prepared.rglob("*") if path.is_dir()), prepared):
            _sync_folder(folder)
        _put_in_place(prepared, target, overwrite=overwrite)
    except BaseException:
        remove_made(prepared)
        raise
    _sync_folder(target.parent)


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse to write where something is already; with `overwrite`, only an artifact and nothing else makes room."""
    if not os.path.lexists(target):
        return
    if not overwrite:
        raise ConfigError(f"{target} exists already", do="choose another --out, or --overwrite true")
    check_replaceable(target, "an artifact", _list_files)


def _list_files(folder: Path) -> Collection[str]:
    """Names of all files of an artifact, of this version or another; an error where the folder holds none.

    Checkpoints have a sealed manifest.json, too, without the line for a signature.
    """
    data = read_manifest_bytes(folder)
    open_envelope(data)
    content = parse_json(data, str(folder / MANIFEST), kind=dict)
    return {MANIFEST, *read_files(content.get("files"), "files", FILE_NAME)}


def _put_in_place(prepared: Path, target: Path, *, overwrite: bool) -> None:
    check_target(target, overwrite=overwrite)
    replace_folder(prepared, target, "an artifact", _list_files)


def _write_file(path: Path, content: bytes) -> None:
    """Only the owner can write to it afterwards, whatever the umask is."""
    for folder in reversed([each for each in path.parents if not each.exists()]):
        folder.mkdir(mode=0o755)
    with naming(path), open(create_own(path), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    """Make the names in a folder durable, where the file system can."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError:
        return
    finally:
        os.close(folder)


def read_manifest(folder: Path, key: bytes | None = None) -> ArtifactManifest:
    """The manifest, once its hash and (with a key) its signature are right."""
    return parse_manifest(read_manifest_bytes(folder), key)


def read_manifest_bytes(folder: Path) -> bytes:
    """The manifest as it is on disk."""
    try:
        return _read(folder / MANIFEST, MAX_MANIFEST_BYTES)
    except OSError as error:
        raise ArtifactError(
            f"there is no artifact in {folder}",
            why=f"its manifest cannot be read: {error.strerror or error}",
            do="monograph precompile RECIPE --out DIR makes one",
        ) from None


def sign_manifest(folder: Path, data: bytes, key: bytes) -> bool:
    """Replace the manifest by the same one with a signature; False when it has that signature already."""
    envelope = open_envelope(data)
    if envelope.signature and is_signed_with(envelope.signed, envelope.signature, key):
        return False
    prepared = folder / f".{MANIFEST}-{secrets.token_hex(4)}"
    try:
        _write_file(prepared, seal(envelope.signed, key))
        os.replace(prepared, folder / MANIFEST)
        _sync_folder(folder)
    except OSError as error:
        prepared.unlink(missing_ok=True)
        raise ArtifactError(f"{folder} cannot be signed", why=str(error.strerror or error)) from None
    return True


def read_file(folder: Path, manifest: ArtifactManifest, name: str, *, is_private: bool = False) -> bytes:
    """One file's content, read once and checked as it was read: what is used is what was checked.

    With `is_private`, a file that other users can write to is refused.
    """
    record = manifest.files.get(name)
    if record is None:
        raise ArtifactError(f"{name} is not part of the artifact", why="its manifest does not list it")
    try:
        content = _read(folder / name, min(record.size, MAX_FILE_BYTES), is_private=is_private)
    except _OversizedFile:
        content = None
    except OSError as error:
        raise ArtifactError(f"{name} of the artifact cannot be read", why=str(error.strerror or error)) from None
    if content is None or len(content) != record.size or hashlib.sha256(content).hexdigest() != record.sha256:
        raise ArtifactError(
            f"{name} of the artifact is damaged",
            why="it is not the file whose hash the manifest has; nothing of it was used",
            do="copy the artifact again, or precompile it again",
        )
    return content


class _OversizedFile(OSError):
    """A file that is larger than it may be."""


def _read(path: Path, limit: int, *, is_private: bool = False) -> bytes:
    """Content of a regular file up to a size: a pipe would wait forever, and a hole may have any size."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a file")
        if is_private and (writer := find_writer(found, read_acl(file.fileno()))):
            raise OSError(f"it is code, and {writer}")
        if found.st_size > limit:
            raise _OversizedFile(f"it has {found.st_size} bytes, and at most {limit} are read")
        return file.read(limit)


def check_files(folder: Path, manifest: ArtifactManifest) -> None:
    """Every file is there and is what the manifest says."""
    for name in manifest.files:
        read_file(folder, manifest, name)
