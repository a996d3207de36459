"""Is a checkpoint what was saved, and does it fit what is asked of it? Answered before a live tensor is touched."""

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError

from monograph.errors import CheckpointError
from monograph.log import get_log
from monograph.manifest.fields import FileRecord
from monograph.models.model_config import ModelConfig
from monograph.system.foreign_json import UnusableFile
from monograph.train.checkpoint.disk import hash_file
from monograph.train.checkpoint.held_files import HeldFiles
from monograph.train.checkpoint.manifest import MANIFEST_NAME, TENSOR_FILE_ENDING, CheckpointManifest, TensorRecord
from monograph.train.checkpoint.manifest_file import (
    DamagedError,
    GoneError,
    describe_damage,
    read_manifest,
    read_manifest_bytes,
)
from monograph.train.checkpoint.patient_read import UnreadableError, read_again
from monograph.train.checkpoint.ranks import Ranks
from monograph.train.checkpoint.tensor_file import TensorSpec, find_dtype, read_specs

MODEL_PREFIX = "model/"
"""Keys of the weights; everything else belongs to the run that saved them."""
OPTIMIZER_PREFIX = "optimizer/"
"""Keys of the optimizer's state, before its kind and the name of the parameter."""
_SHOWN = 5
_HASH_THREADS = 4

log = get_log(__name__)


@dataclass(frozen=True)
class LoadRequest:
    """What a load will write into: the shape of the whole tensor and its element type."""

    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """A checkpoint whose bytes were compared with its manifest."""

    path: Path
    manifest: CheckpointManifest
    files: HeldFiles
    """Where a process is alone, its files are open: they can be read even if a run deletes them now."""


def verify_held(path: Path, ranks: Ranks | None = None) -> VerifiedCheckpoint:
    """Open the files of a checkpoint and verify it. Of several ranks each would open all files, so none does."""
    ranks = ranks or Ranks()
    files = HeldFiles(path)
    return VerifiedCheckpoint(path, verify_checkpoint(path, ranks, files), files)


def verify_checkpoint(path: Path, ranks: Ranks | None = None, files: HeldFiles | None = None) -> CheckpointManifest:
    """Read every byte of a checkpoint and compare it with the manifest; raises the same error on all ranks:
    DamagedError, or UnreadableError where storage does not show the bytes and nothing else is wrong.

    Each rank reads its share of the files, several at a time. A process alone opens all of them first (`files`).
    """
    ranks = ranks or Ranks()
    files = files or HeldFiles(path)
    opened = ranks.broadcast_object(_attempt_manifest(files, holds=ranks.size == 1) if ranks.is_first else None)
    if isinstance(opened, CheckpointError) or opened is None:
        raise opened or AssertionError("the first rank shares what it found")
    check_same_weights(path, _digest_manifest(path), ranks)
    mine = sorted(opened.files)[ranks.rank :: ranks.size]
    contents = _find_contents(opened)
    with ThreadPoolExecutor(min(_HASH_THREADS, max(1, len(mine)))) as pool:
        found = list(pool.map(lambda name: _find_problem(files, name, opened.files[name], contents[name]), mine))
    problems = [problem for part in ranks.all_gather_object(found) for problem in part if problem is not None]
    if problems:
        worst = min(problems, key=lambda problem: isinstance(problem, UnreadableError))
        if isinstance(worst, DamagedError) and worst.is_missing:
            if not any(ranks.all_gather_object(os.path.lexists(path))):
                raise GoneError(path)
            seen = ranks.all_gather_object((path / worst.file).is_file())
            if any(seen):
                raise UnreadableError(path, f"rank {seen.index(True)} sees {worst.file}, and another rank does not")
        raise worst
    return opened


def check_same_weights(path: Path, digest: str, ranks: Ranks) -> None:
    """Refuse a folder that is not the same on all machines: each rank reads its part, and these make one model.

    `digest` stands for what this rank finds there; an empty one, where it finds nothing, is damage found later.
    """
    digests = ranks.all_gather_object(digest)
    other = next((rank for rank, each in enumerate(digests) if each != digests[0] and "" not in (each, digests[0])), 0)
    if other:
        raise CheckpointError(
            f"rank {other} finds other weights in {path} than rank 0",
            why="every rank reads its part of them, and parts of two models are none",
            do="name a folder that all machines share, or copy it to all of them again",
        )


def check_unit_count(path: Path, manifest: CheckpointManifest, config: ModelConfig, *, wanted_by: str) -> None:
    """Refuse a model of more units than the checkpoint has tensors, before it is built: that takes time for each."""
    units = len(config.find_units() or ())
    stored = sum(name.startswith(MODEL_PREFIX) for name in manifest.tensors)
    if units > stored:
        raise CheckpointError(
            f"checkpoint {path} does not fit {wanted_by}",
            why=f"the model has {units} units, and the checkpoint {stored} tensors of weights",
            do="use the configuration it was saved with",
        )


def check_request(
    path: Path,
    manifest: CheckpointManifest,
    requests: Mapping[str, LoadRequest],
    *,
    model_only: bool,
    wanted_by: str = "this run",
) -> None:
    """Raise one error that says everything in which the request and the checkpoint differ.

    Loading only the weights ignores the rest of the checkpoint and may change between floating types, since an imported
    model often comes in fewer bits than it is trained in. A resume must match exactly, except for the floating type of
    the optimizer's state, which a run may change on the way (`find_casts`).
    """
    offered = {name for name in manifest.tensors if not model_only or name.startswith(MODEL_PREFIX)}
    wrong = [
        text
        for name in sorted(offered & set(requests))
        if (text := _find_mismatch(name, manifest.tensors[name], requests[name], model_only))
    ]
    problems = [
        list_some("missing in the checkpoint", sorted(set(requests) - offered)),
        list_some(f"in the checkpoint but not in {wanted_by}", sorted(offered - set(requests))),
        list_some("different", wrong),
    ]
    if any(problems):
        raise CheckpointError(
            f"checkpoint {path} does not fit {wanted_by}",
            why="; ".join(problem for problem in problems if problem),
            do="use the configuration it was saved with"
            + ("" if model_only else "; --checkpoint.load_model_only takes the weights alone"),
        )


def find_casts(manifest: CheckpointManifest, requests: Mapping[str, LoadRequest]) -> list[str]:
    """What loading the optimizer's state converts, in words: by kind of state and types."""
    found: Counter[tuple[str, str, str]] = Counter()
    for name in sorted(set(requests) & set(manifest.tensors)):
        saved, wanted = manifest.tensors[name].dtype, str(requests[name].dtype).removeprefix("torch.")
        if name.startswith(OPTIMIZER_PREFIX) and saved != wanted:
            found[name.split("/")[1], saved, wanted] += 1
    return [
        f"{kind} is {saved} in the checkpoint and {wanted} in this run: {count} tensors are "
        + ("converted exactly" if (saved, wanted) == ("bfloat16", "float32") else "rounded to nearest, once")
        for (kind, saved, wanted), count in found.items()
    ]


def list_some(title: str, entries: Iterable[str]) -> str:
    """The first few entries under a title, and how many more there are; nothing when there are none."""
    entries = list(entries)
    more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return f"{title}: {', '.join(entries[:_SHOWN])}{more}" if entries else ""


def _attempt_manifest(files: HeldFiles, *, holds: bool) -> CheckpointManifest | CheckpointError:
    """The manifest and the list of names; hashing is shared out once these are known."""
    path = files.folder
    try:
        manifest = read_manifest(path)
        if holds:
            files.hold(manifest.files)
        names = set(read_again(path, lambda: os.listdir(path))) - {MANIFEST_NAME}
    except CheckpointError as error:
        return error
    except FileNotFoundError:
        names = set()  # deleted meanwhile; what is held can be read all the same
    except OSError as error:
        return UnreadableError(path, error.strerror or str(error))
    if strays := sorted(names - set(manifest.files)):
        log.warning("%s; it is not read", list_some(f"{path} holds what is not part of it", strays))
    return manifest


def _digest_manifest(path: Path) -> str:
    """The bytes of this rank's manifest, which hold the hashes of all files."""
    try:
        return hashlib.sha256(read_manifest_bytes(path)).hexdigest()
    except (OSError, UnusableFile):
        return ""


def _find_problem(
    files: HeldFiles, name: str, record: FileRecord, content: dict[str, TensorSpec]
) -> CheckpointError | None:
    """How a file differs from what was saved, or why that cannot be told."""
    path, located = files.folder, files.locate(name)
    try:
        size, sha256 = read_again(path, lambda: hash_file(located, size=record.size), may_be_late=True)
        if size != record.size:
            return DamagedError(path, name, f"it has {size} bytes instead of {record.size}")
        if sha256 != record.sha256:
            return DamagedError(path, name, "its content has changed (sha256 differs)")
        if not name.endswith(TENSOR_FILE_ENDING):
            return None
        stored = read_again(path, lambda: read_specs(located))
    except FileNotFoundError as error:
        return DamagedError(path, name, describe_damage(error), is_missing=True)
    except UnusableFile as error:
        return DamagedError(path, name, error.why)
    except (SafetensorError, IsADirectoryError) as error:
        return DamagedError(path, name, describe_damage(error))
    except OSError as error:
        return UnreadableError(path, f"{name}: {error.strerror or error}")
    if stored != content:
        key = min(key for key in stored.keys() | content.keys() if stored.get(key) != content.get(key))
        return DamagedError(path, name, f"{key} is not what the manifest says")
    return None


def _find_contents(manifest: CheckpointManifest) -> dict[str, dict[str, TensorSpec]]:
    """What the header of each file must say."""
    contents: dict[str, dict[str, TensorSpec]] = {name: {} for name in manifest.files}
    for tensor in manifest.tensors.values():
        for chunk in tensor.chunks:
            contents[chunk.file][chunk.key] = TensorSpec(chunk.key, find_dtype(tensor.dtype), chunk.sizes)
    return contents


def _find_mismatch(name: str, saved: TensorRecord, wanted: LoadRequest, model_only: bool) -> str:
    if saved.shape != wanted.shape:
        return f"{name} has shape {list(saved.shape)} there and {list(wanted.shape)} here"
    dtype = find_dtype(saved.dtype)
    may_change = model_only or name.startswith(OPTIMIZER_PREFIX)
    castable = may_change and dtype.is_floating_point and wanted.dtype.is_floating_point
    if dtype != wanted.dtype and not castable:
        return f"{name} is {saved.dtype} there and {str(wanted.dtype).removeprefix('torch.')} here"
    return ""
