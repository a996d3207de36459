"""An artifact on disk: it appears whole or not at all, and no byte of it is used before its hash was checked.

Loads without torch, so that a run that cannot use its artifact says so at once.
"""

import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

from monograph.errors import ConfigError
from monograph.execute.artifact.manifest import (
    MANIFEST,
    ArtifactError,
    FileRecord,
    Manifest,
    parse_manifest,
    render_manifest,
)

KEY_VARIABLE = "MONOGRAPH_ARTIFACT_KEY"
"""The environment variable that holds the key, where no file does."""
MAX_MANIFEST_BYTES = 256 << 20


def read_key(key_file: str = "") -> bytes | None:
    """The key that signs artifacts: the file's content, or the environment variable; None when neither is set."""
    if key_file:
        try:
            key = Path(key_file).read_bytes().strip()
        except OSError as error:
            raise ConfigError(f"compile.artifact_key_file is {key_file}", why=f"it cannot be read: {error}") from None
    else:
        key = os.environ.get(KEY_VARIABLE, "").encode()
    if key_file and not key:
        raise ConfigError(f"compile.artifact_key_file is {key_file}", why="it is empty, and an empty key signs nothing")
    return key or None


def write_artifact(
    target: Path,
    sections: Mapping[str, object],
    files: Mapping[str, bytes],
    *,
    key: bytes | None = None,
    overwrite: bool = False,
) -> None:
    """Write everything beside `target` and give it its name at the end; readers never see a part of it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    prepared = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")
    prepared.mkdir()
    try:
        records = {}
        for name, content in files.items():
            _write_file(prepared / name, content)
            records[name] = FileRecord(len(content), hashlib.sha256(content).hexdigest())
        _write_file(prepared / MANIFEST, render_manifest(sections, records, key))
        for folder in (*(path for path in prepared.rglob("*") if path.is_dir()), prepared):
            _sync_folder(folder)
        _put_in_place(prepared, target, overwrite=overwrite)
    except BaseException:
        shutil.rmtree(prepared, ignore_errors=True)
        raise
    _sync_folder(target.parent)


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse to write where something is already; with `overwrite`, only an artifact makes room."""
    if not target.exists():
        return
    if not overwrite:
        raise ConfigError(f"{target} exists already", do="choose another --out, or --overwrite true")
    if not (target / MANIFEST).exists():
        raise ConfigError(f"{target} is not an artifact", why="only an artifact is replaced by one")


def _put_in_place(prepared: Path, target: Path, *, overwrite: bool) -> None:
    check_target(target, overwrite=overwrite)
    if not target.exists():
        os.rename(prepared, target)
        return
    old = target.with_name(f".old-{target.name}-{secrets.token_hex(4)}")
    os.rename(target, old)
    os.rename(prepared, target)
    shutil.rmtree(old, ignore_errors=True)


def _write_file(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "xb") as file:
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


def read_manifest(folder: Path, key: bytes | None = None) -> Manifest:
    """The manifest, once its hash and (with a key) its signature are right."""
    path = folder / MANIFEST
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_MANIFEST_BYTES)
    except OSError as error:
        raise ArtifactError(
            f"there is no artifact in {folder}",
            why=f"its manifest cannot be read: {error.strerror or error}",
            do="monograph precompile RECIPE --out DIR makes one",
        ) from None
    return parse_manifest(data, key)


def read_file(folder: Path, manifest: Manifest, name: str) -> bytes:
    """One file's content, read once and checked as it was read: what is used is what was checked."""
    record = manifest.files.get(name)
    if record is None:
        raise ArtifactError(f"{name} is not part of the artifact", why="its manifest does not list it")
    try:
        with open(folder / name, "rb") as file:
            content = file.read(record.size + 1)
    except OSError as error:
        raise ArtifactError(f"{name} of the artifact cannot be read", why=str(error.strerror or error)) from None
    if len(content) != record.size or hashlib.sha256(content).hexdigest() != record.sha256:
        raise ArtifactError(
            f"{name} of the artifact is damaged",
            why="it is not the file whose hash the manifest has; nothing of it was used",
            do="copy the artifact again, or precompile it again",
        )
    return content


def check_files(folder: Path, manifest: Manifest) -> None:
    """Every file is there and is what the manifest says."""
    for name in manifest.files:
        read_file(folder, manifest, name)
