"""Weights from and to Hugging Face folders, tensor by tensor: a model is never in memory, not even once.

Which tensor of ours is which of theirs is said in `models/<family>/hf.py`; here bytes are moved. Both directions check
every name and shape before the first byte is written, and the result appears under its name only when it is whole.
"""

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from monograph.config.configurable import check_config
from monograph.config.json_form import from_json, to_json
from monograph.errors import CheckpointError, ConfigError
from monograph.log import get_log
from monograph.manifest.fields import FileRecord
from monograph.models.hf_families import find_family, find_family_of
from monograph.models.hf_fp8 import FP8_DTYPE, SCALE_SUFFIX
from monograph.models.hf_map import Entry
from monograph.models.hf_tensors import read_theirs
from monograph.models.model_config import ModelConfig
from monograph.train.checkpoint.disk import Disk, new_folder, write_file
from monograph.train.checkpoint.hf_folder import (
    CONFIG_NAME,
    INDEX_NAME,
    SINGLE_NAME,
    HfFolder,
    check_fp8,
    read_json_object,
)
from monograph.train.checkpoint.manifest import MANIFEST_NAME, CheckpointManifest, Chunk, TensorRecord, render_manifest
from monograph.train.checkpoint.reader import RegionReader
from monograph.train.checkpoint.tensor_file import TensorSpec, find_dtype, name_dtype, split_files, write_tensor_file
from monograph.train.checkpoint.verify import MODEL_PREFIX, LoadRequest, check_request, list_some, verify_checkpoint

MODEL_VALUE = "model"
"""Key among a checkpoint's values of the model's configuration, as `to_json` writes it; `export_hf` reads it."""
IMPORT_FILE_BYTES = 4 << 30
EXPORT_FILE_BYTES = 5_000_000_000
_PIECE_BYTES = 64 << 20

log = get_log(__name__)


@dataclass(frozen=True)
class Moved:
    """What an import or export wrote."""

    path: Path
    config: ModelConfig
    n_tensors: int
    n_bytes: int
    n_files: int


@dataclass(frozen=True)
class _Ours:
    """One tensor as our model has it."""

    shape: tuple[int, ...]
    is_buffer: bool
    """Buffers keep the type they are stored in; a cast is for weights."""


def import_hf(
    source: Path,
    target: Path,
    *,
    dtype: torch.dtype | None = None,
    max_file_bytes: int = IMPORT_FILE_BYTES,
    disk: Disk | None = None,
) -> Moved:
    """Write the model in the Hugging Face folder `source` as a checkpoint of step 0, weights only, at `target`.

    Weights are kept in the type they are stored in unless `dtype` is given; loading converts as the run needs.
    """
    disk = disk or Disk()
    folder = HfFolder(source)
    family = find_family(str(folder.config.get("model_type")))
    config = family.from_hf_config(folder.config)
    check_config(config)
    entries = family.entries(config)
    ours = _describe_model(config, entries)
    _check_theirs(folder, entries, ours, [name for name in folder if family.is_ignored(config, name)])
    check_fp8(folder, [name for entry in entries for name in entry.theirs])
    specs = [_plan_ours(folder, entry, ours[entry.ours], dtype) for entry in entries]
    entry_of = {MODEL_PREFIX + entry.ours: entry for entry in entries}
    files = split_files((spec for spec in specs if spec.num_bytes), max_file_bytes)
    _check_absent(target)

    def read(spec: TensorSpec) -> Iterator[torch.Tensor]:
        for name in entry_of[spec.key].theirs:
            yield read_theirs(folder, name).to(spec.dtype)

    with new_folder(disk, target) as prepared:
        records: dict[str, FileRecord] = {}
        tensors = {spec.key: _record(spec, "") for spec in specs if not spec.num_bytes}
        for number, part in enumerate(files, start=1):
            name = f"import-{number:05d}.safetensors"
            records[name] = write_tensor_file(disk, prepared / name, part, read)
            tensors |= {spec.key: _record(spec, name) for spec in part}
            log.info("%s: wrote file %d of %d", target, number, len(files))
        values = {MODEL_VALUE: to_json(config)}
        manifest = CheckpointManifest(0, 0, secrets.token_hex(8), values, tensors, records)
        write_file(disk, prepared / MANIFEST_NAME, render_manifest(manifest))
    return Moved(target, config, len(specs), sum(spec.num_bytes for spec in specs), len(files))


def export_hf(
    checkpoint: Path,
    target: Path,
    *,
    config: ModelConfig | None = None,
    dtype: torch.dtype | None = None,
    max_file_bytes: int = EXPORT_FILE_BYTES,
    disk: Disk | None = None,
) -> Moved:
    """Write the weights of a checkpoint as a Hugging Face folder at `target`.

    The model's configuration comes from the checkpoint unless `config` is given.
    """
    disk = disk or Disk()
    manifest = verify_checkpoint(checkpoint)
    config = config or find_model_config(checkpoint, manifest)
    family = find_family_of(config)
    entries = family.entries(config)
    ours = _describe_model(config, entries)
    requests = {MODEL_PREFIX + name: LoadRequest(torch.float32, tensor.shape) for name, tensor in ours.items()}
    check_request(checkpoint, manifest, requests, model_only=True, wanted_by="the model that is to be exported")
    pieces = {name: piece for entry in entries for name, piece in _plan_theirs(manifest, entry, ours, dtype)}
    files = split_files((piece.spec for piece in pieces.values()), max_file_bytes)
    settings = family.to_hf_config(config) | {"torch_dtype": _find_main_dtype(pieces.values())}
    _check_absent(target)
    regions = RegionReader(checkpoint, manifest)
    with new_folder(disk, target) as prepared:
        index: dict[str, str] = {}
        for number, part in enumerate(files, start=1):
            name = SINGLE_NAME if len(files) == 1 else f"model-{number:05d}-of-{len(files):05d}.safetensors"
            write_tensor_file(
                disk, prepared / name, part, lambda spec: pieces[spec.key].read(regions), metadata={"format": "pt"}
            )
            index |= dict.fromkeys((spec.key for spec in part), name)
            log.info("%s: wrote file %d of %d", target, number, len(files))
        total = sum(piece.spec.num_bytes for piece in pieces.values())
        if len(files) > 1:
            _write_json(disk, prepared / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": index})
        _write_json(disk, prepared / CONFIG_NAME, settings)
    return Moved(target, config, len(pieces), total, len(files))


@dataclass(frozen=True)
class _Piece:
    """One tensor of theirs and the box of ours that it is."""

    spec: TensorSpec
    ours: str
    lead: tuple[int, ...]
    """The place in a stack; empty for a tensor that is one of ours."""

    def read(self, regions: RegionReader) -> Iterator[torch.Tensor]:
        """Its elements, some rows at a time."""
        shape, ones = self.spec.shape, (1,) * len(self.lead)
        if not shape:
            yield regions.read(self.ours, self.lead, ones).to(self.spec.dtype)
            return
        row_bytes = max(1, self.spec.num_bytes // max(1, shape[0]))
        step = max(1, _PIECE_BYTES // row_bytes)
        for row in range(0, shape[0], step):
            offsets = (*self.lead, row, *(0,) * (len(shape) - 1))
            sizes = (*ones, min(step, shape[0] - row), *shape[1:])
            yield regions.read(self.ours, offsets, sizes).to(self.spec.dtype)


def find_model_config(path: Path, manifest: CheckpointManifest) -> ModelConfig:
    """The model's configuration that a checkpoint carries."""
    value = manifest.values.get(MODEL_VALUE)
    try:
        config = from_json(value) if value is not None else None
    except ConfigError as error:
        raise CheckpointError(
            f"{path} holds the configuration of a model that cannot be read: {error.what}",
            why=error.why,
            do=f"{error.do}: give the model's configuration in today's names, in a file, with --config",
        ) from None
    if not isinstance(config, ModelConfig):
        raise CheckpointError(
            f"{path} does not say which model it holds",
            why=f"its values have no '{MODEL_VALUE}'",
            do="give the run's config.json, or one of Hugging Face's, with --config",
        )
    return config


def read_model_config(path: Path) -> ModelConfig:
    """The model's configuration in a file: a run's config.json, a model's own JSON, or a config.json of theirs."""
    data = read_json_object(path)
    if "$class" not in data:
        return find_family(str(data.get("model_type"))).from_hf_config(data)
    config = from_json(data)
    model = getattr(config, "model", config)
    if not isinstance(model, ModelConfig):
        raise CheckpointError(f"{path} does not describe a model", why=f"it holds a {type(config).__name__}")
    return model


def _describe_model(config: ModelConfig, entries: Iterable[Entry]) -> dict[str, _Ours]:
    """The shapes of our model, from building it without memory; the map must name each of its tensors."""
    with torch.device("meta"):
        model = config.build()
    parameters = dict(model.named_parameters())
    aliases = {name for name, _ in model.named_parameters(remove_duplicate=False)} - set(parameters)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in aliases}
    mapped = {entry.ours for entry in entries}
    if mapped != set(state):
        difference = list_some("in only one of the model and its Hugging Face map", sorted(mapped ^ set(state)))
        raise CheckpointError(
            f"{type(config).__name__} cannot be converted to or from Hugging Face",
            why=difference,
            do="name every tensor in the family's hf.py",
        )
    return {name: _Ours(tuple(tensor.shape), name not in parameters) for name, tensor in state.items()}


def _check_theirs(folder: HfFolder, entries: Iterable[Entry], ours: Mapping[str, _Ours], ignored: list[str]) -> None:
    """Raise one error that lists what is missing, what is not known, and what has another shape than it should."""
    needed: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        shape = ours[entry.ours].shape
        if entry.stacked and len(entry.theirs) != shape[0]:
            raise AssertionError(f"{entry.ours} stacks {shape[0]} tensors, but {len(entry.theirs)} are named")
        needed |= dict.fromkeys(entry.theirs, shape[1:] if entry.stacked else shape)
    scales = {name + SCALE_SUFFIX for name in needed}
    wrong = [
        f"{name} has shape {list(folder.specs[name].shape)} instead of {list(shape)}"
        for name, shape in sorted(needed.items())
        if name in folder and folder.specs[name].shape != shape
    ]
    problems = [
        list_some("missing", sorted(set(needed) - set(folder))),
        list_some("not known", sorted(set(folder) - set(needed) - scales - set(ignored))),
        list_some("different", wrong),
    ]
    if any(problems):
        raise CheckpointError(
            f"the tensors in {folder.path} are not those of the model in its {CONFIG_NAME}",
            why="; ".join(problem for problem in problems if problem),
        )


def _plan_ours(folder: HfFolder, entry: Entry, ours: _Ours, dtype: torch.dtype | None) -> TensorSpec:
    types = (folder.specs[name].dtype for name in entry.theirs)
    stored = {torch.bfloat16 if each == FP8_DTYPE else each for each in types}
    if len(stored) > 1 and dtype is None:
        raise CheckpointError(
            f"the parts of {entry.ours} in {folder.path} differ in type",
            why=", ".join(sorted(map(str, stored))),
            do="choose one with --dtype",
        )
    kept = stored.pop()
    cast = dtype is not None and kept.is_floating_point and not ours.is_buffer
    return TensorSpec(MODEL_PREFIX + entry.ours, dtype if cast and dtype else kept, ours.shape)


def _plan_theirs(
    manifest: CheckpointManifest, entry: Entry, ours: Mapping[str, _Ours], dtype: torch.dtype | None
) -> Iterator[tuple[str, _Piece]]:
    name, described = MODEL_PREFIX + entry.ours, ours[entry.ours]
    stored = find_dtype(manifest.tensors[name].dtype)
    chosen = dtype if dtype is not None and not described.is_buffer else stored
    shape = described.shape[1:] if entry.stacked else described.shape
    for number, theirs in enumerate(entry.theirs):
        yield theirs, _Piece(TensorSpec(theirs, chosen, shape), name, (number,) if entry.stacked else ())


def _record(spec: TensorSpec, file: str) -> TensorRecord:
    chunks = (Chunk((0,) * len(spec.shape), spec.shape, file, spec.key),) if spec.num_bytes else ()
    return TensorRecord(name_dtype(spec.dtype, spec.key), spec.shape, chunks)


def _find_main_dtype(pieces: Iterable[_Piece]) -> str:
    """The type of most of the weights, which is what config.json states."""
    sizes: dict[torch.dtype, int] = {}
    for piece in pieces:
        sizes[piece.spec.dtype] = sizes.get(piece.spec.dtype, 0) + piece.spec.num_bytes
    return str(max(sizes, key=lambda dtype: sizes[dtype])).removeprefix("torch.")


def _check_absent(target: Path) -> None:
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CheckpointError(
            f"{target} exists", why="nothing is ever overwritten", do="remove it, or choose another name"
        )


def _write_json(disk: Disk, path: Path, value: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except ValueError as error:
        raise CheckpointError(f"{path.name} cannot be written", why=f"a value of it is no JSON: {error}") from None
    write_file(disk, path, f"{text}\n".encode())
