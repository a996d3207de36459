"""The manifest of a checkpoint on disk, read and proved to be intact. Loads without torch."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from monograph.errors import CheckpointError
from monograph.manifest.fields import ManifestError
from monograph.system.foreign_json import UnusableFile, read_file
from monograph.system.own_tree import find_foreign
from monograph.train.checkpoint.manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    ManifestHead,
    parse_file_names,
    parse_head,
    parse_manifest,
)
from monograph.train.checkpoint.patient_read import UnreadableError, read_again
from monograph.train.checkpoint.store import find_step

M = TypeVar("M", bound=ManifestHead)
MAX_MANIFEST_BYTES = 4 << 30
"""Ten times the largest of ours: thousands of ranks, each with a piece of every tensor."""


class DamagedError(CheckpointError):
    """The bytes on disk are not those that were saved; `file` is the one that shows it, or that is not there."""

    def __init__(self, path: Path, file: str, reason: str, *, is_missing: bool = False) -> None:
        super().__init__(
            f"checkpoint {path} is damaged: {file}: {reason}",
            do="load another one; --checkpoint.load latest takes the newest good one",
        )
        self.path, self.file, self.reason, self.is_missing = path, file, reason, is_missing

    def __reduce__(self) -> Any:
        made = partial(type(self), is_missing=self.is_missing)
        return made, (self.path, self.file, self.reason)


class GoneError(DamagedError):
    """A checkpoint that was there a moment ago: the run that wrote it has deleted it, or somebody else has."""

    def __init__(self, path: Path) -> None:
        CheckpointError.__init__(
            self,
            f"checkpoint {path} was deleted while it was read",
            why="a run that trains keeps only its newest checkpoints (checkpoint.keep_last)",
            do="name the run's folder instead: its newest checkpoint is read",
        )
        self.path, self.file, self.reason, self.is_missing = path, MANIFEST_NAME, "it was deleted meanwhile", True

    def __reduce__(self) -> Any:
        return type(self), (self.path,)


def read_manifest(path: Path) -> CheckpointManifest:
    """The manifest of the checkpoint at `path`, once it has proved to be intact."""
    return _read(path, parse_manifest)


def read_head(path: Path) -> ManifestHead:
    """The same without its tensors: enough to put checkpoints in order, and much faster."""
    return _read(path, parse_head)


def find_foreign_files(path: Path) -> list[str]:
    """Names in a checkpoint's folder that its manifest does not list: somebody has put them there. Raises OSError and
    ValueError where that cannot be told."""
    return find_foreign(path, parse_file_names(read_manifest_bytes(path)))


def read_manifest_bytes(path: Path) -> bytes:
    """The file as it is; UnusableFile where its name stands for a FIFO, a device or anything else that is no file."""
    return read_file(path / MANIFEST_NAME, max_bytes=MAX_MANIFEST_BYTES)


def _read(path: Path, parse: Callable[[bytes], M]) -> M:
    try:
        manifest = parse(read_again(path, lambda: read_manifest_bytes(path), may_be_late=True))
    except UnusableFile as error:
        raise DamagedError(path, MANIFEST_NAME, error.why) from None
    except (FileNotFoundError, IsADirectoryError, ManifestError) as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
            raise GoneError(path) from None
        raise DamagedError(path, MANIFEST_NAME, describe_damage(error)) from None
    except OSError as error:
        raise UnreadableError(path, f"{MANIFEST_NAME}: {error.strerror or error}") from None
    if find_step(path) not in (None, manifest.step):
        raise DamagedError(path, MANIFEST_NAME, f"it belongs to step {manifest.step}")
    return manifest


def describe_damage(error: Exception) -> str:
    """What an error says about a file, in a few words."""
    if isinstance(error, OSError):
        return "it is missing" if isinstance(error, FileNotFoundError) else error.strerror or str(error)
    return str(error)
