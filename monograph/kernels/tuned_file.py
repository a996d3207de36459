"""Tuned settings on disk: one JSON file for each kind of GPU and version of the kernels, in the user's cache folder.

A file is written whole, by one process at a time, which adds to what others have written. A damaged file is ignored
with a warning, and replaced by the next that is written; one that cannot be read now is ignored and stays.
"""

import fcntl
import hashlib
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from monograph import strict_json
from monograph.compat.triton import HAS_TRITON, triton
from monograph.kernels.tuning import Settings, TunedKey
from monograph.log import get_log
from monograph.system.cache_folder import find_cache_folder
from monograph.system.foreign_json import read_file
from monograph.system.own_file import open_own
from monograph.whole_file import write_whole

LOCK_SECONDS = 10.0
"""How long to wait for another process that writes."""
log = get_log("tune")
_KERNELS = Path(__file__).parent


@dataclass(frozen=True)
class GpuKind:
    """What settings are tuned for: kernels that are built alike for GPUs of one name."""

    name: str
    capability: str
    triton: str
    source: str
    """A digest of the code of all kernels."""

    @property
    def file_name(self) -> str:
        """Of the file with its settings."""
        words = (self.name, f"sm{self.capability}", f"triton{self.triton}", self.source)
        return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)) + ".json"


@dataclass(frozen=True)
class TunedKernel:
    """The settings found for one kernel and its sizes, and how long a call took with the default and with them."""

    key: TunedKey
    settings: Settings
    default_ms: float
    best_ms: float


Tuned = Mapping[TunedKey, TunedKernel]


def find_gpu_kind(device: torch.device) -> GpuKind | None:
    """The kind of a device; None where there are no kernels to tune."""
    if device.type != "cuda" or not HAS_TRITON:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    return GpuKind(torch.cuda.get_device_name(device), f"{major}.{minor}", triton.__version__, hash_kernels())


@cache
def hash_kernels() -> str:
    """A digest of the files that kernels are written in."""
    digest = hashlib.sha256()
    for path in sorted(_KERNELS.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def find_folder() -> Path:
    """Where the files are, in the user's cache folder."""
    return find_cache_folder("kernels")


def read_tuned(kind: GpuKind) -> dict[TunedKey, TunedKernel]:
    """What was tuned for a kind of GPU; nothing, with a warning, where the file is damaged."""
    try:
        return _read(find_folder() / kind.file_name, kind)
    except OSError as error:
        log.warning("tuned settings of kernels are not used: %s cannot be read: %s", error.filename, error.strerror)
        return {}


def _read(path: Path, kind: GpuKind) -> dict[TunedKey, TunedKernel]:
    try:
        made_for, found = parse_tuned(read_file(path))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        log.warning("tuned settings of kernels are not used: %s is damaged: %s", path, error)
        return {}
    return found if made_for == kind else {}


def write_tuned(kind: GpuKind, tuned: Iterable[TunedKernel]) -> Path:
    """Add to what is known of a kind of GPU; the file. What is known is read first, and an OSError ends it."""
    path = find_folder() / kind.file_name
    with _locked(path.with_suffix(".lock")):
        write_whole(path, render_tuned(kind, {**_read(path, kind), **{each.key: each for each in tuned}}))
    return path


def render_tuned(kind: GpuKind, tuned: Tuned) -> bytes:
    """The file's content; the same for the same settings."""
    kernels = [
        {
            "kernel": each.key.kernel,
            "sizes": list(each.key.sizes),
            "settings": dict(each.settings),
            "default_ms": each.default_ms,
            "best_ms": each.best_ms,
        }
        for _, each in sorted(tuned.items())
    ]
    return (strict_json.dump({"gpu": asdict(kind), "kernels": kernels}, indent=1) + "\n").encode()


def parse_tuned(content: bytes) -> tuple[GpuKind, dict[TunedKey, TunedKernel]]:
    """What `render_tuned` wrote; ValueError for anything else."""
    try:
        data = strict_json.parse(content)
        kind = GpuKind(**data["gpu"])
        if not all(isinstance(value, str) for value in asdict(kind).values()):
            raise ValueError("a GPU is described by texts")
        found = [_parse_kernel(each) for each in data["kernels"]]
    except (KeyError, TypeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    return kind, {each.key: each for each in found}


def _parse_kernel(data: Any) -> TunedKernel:
    key = TunedKey(data["kernel"], tuple(data["sizes"]))
    settings, times = dict(data["settings"]), (data["default_ms"], data["best_ms"])
    are_whole = all(type(each) is int for each in (*key.sizes, *settings.values()))
    are_times = all(type(each) is float and 0 < each < math.inf for each in times)
    if not (isinstance(key.kernel, str) and are_whole and are_times):
        raise ValueError(f"this is not a tuned kernel: {str(data)[:100]}")
    return TunedKernel(key, settings, *times)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; on a file system without locks the last writer wins, as after a lock that does not end: a
    file server can keep that of a machine that has died."""
    path.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + LOCK_SECONDS
    with open(open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    log.warning("%s has been locked for %g s: going on without the lock", path, LOCK_SECONDS)
                    break
                time.sleep(0.05)
            except OSError as error:
                log.debug("%s: %s", path, error)
                break
        yield
