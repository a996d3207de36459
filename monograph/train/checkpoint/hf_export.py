"""A checkpoint's weights as a Hugging Face folder, tensor by tensor: a model is never in memory, not even once.

Which tensor of ours is which of theirs is said in `models/<family>/hf.py`; here bytes are moved. Every name and shape
is checked before the first byte is written, and the folder appears under its name only when it is whole.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from monograph.errors import CheckpointError
from monograph.log import get_log
from monograph.models.hf_families import find_family, find_family_of
from monograph.models.hf_map import Entry
from monograph.models.model_config import ModelConfig
from monograph.train.checkpoint.disk import Disk, new_folder, write_file
from monograph.train.checkpoint.finite import check_finite
from monograph.train.checkpoint.hf_assets import CONFIG_NAME, GENERATION_NAME, find_assets, read_asset
from monograph.train.checkpoint.hf_files import INDEX_NAME, SINGLE_NAME
from monograph.train.checkpoint.hf_import import Moved, check_absent
from monograph.train.checkpoint.hf_tokenizer_files import make_tokenizer_files
from monograph.train.checkpoint.hf_weights import TensorOfModel, describe_model
from monograph.train.checkpoint.manifest import CheckpointManifest
from monograph.train.checkpoint.model_source import (
    MODEL_VALUE,
    check_described,
    read_config,
    read_json,
    read_model_value,
)
from monograph.train.checkpoint.reader import RegionReader
from monograph.train.checkpoint.tensor_file import TensorSpec, find_dtype, split_files, write_tensor_file
from monograph.train.checkpoint.verify import (
    MODEL_PREFIX,
    LoadRequest,
    VerifiedCheckpoint,
    check_request,
    check_unit_count,
    verify_held,
)
from monograph.train.data.tokenizer_config import TokenizerConfig

EXPORT_FILE_BYTES = 5_000_000_000
_PIECE_BYTES = 64 << 20

log = get_log(__name__)


def export_hf(
    checkpoint: Path | VerifiedCheckpoint,
    target: Path,
    *,
    config: ModelConfig | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: TokenizerConfig | None = None,
    max_file_bytes: int = EXPORT_FILE_BYTES,
    disk: Disk | None = None,
) -> Moved:
    """Write the weights of a checkpoint as a Hugging Face folder at `target`, with the files of a tokenizer.

    The model's configuration comes from the checkpoint unless `config` is given.
    """
    disk = disk or Disk()
    verified = verify_held(checkpoint) if isinstance(checkpoint, Path) else checkpoint
    checkpoint, manifest = verified.path, verified.manifest
    config = config or read_model_value(checkpoint, manifest.values.get(MODEL_VALUE))
    check_unit_count(checkpoint, manifest, config, wanted_by="the model that is to be exported")
    family = find_family_of(config)
    entries = family.entries(config)
    ours = describe_model(config, entries)
    requests = {MODEL_PREFIX + name: LoadRequest(torch.float32, tensor.shape) for name, tensor in ours.items()}
    check_request(checkpoint, manifest, requests, model_only=True, wanted_by="the model that is to be exported")
    pieces = {name: piece for entry in entries for name, piece in _plan_theirs(manifest, entry, ours, dtype)}
    files = split_files((piece.spec for piece in pieces.values()), max_file_bytes)
    settings = family.to_hf_config(config) | {"torch_dtype": _find_main_dtype(pieces.values())}
    kept = find_assets(checkpoint)
    assets = {GENERATION_NAME: read_asset(kept[GENERATION_NAME])} if GENERATION_NAME in kept else {}
    if tokenizer is not None:
        limit = config.find_sequence_limit()
        made = make_tokenizer_files(tokenizer, max_length=limit.tokens if limit else None)
        assets, settings = made.files, settings | {"bos_token_id": made.bos_id, "eos_token_id": made.eos_id}
    check_absent(target)
    regions = RegionReader(verified)
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
        for name, data in assets.items():
            write_file(disk, prepared / name, data)
    return Moved(target, config, len(pieces), total, len(files), tuple(assets))


@dataclass(frozen=True)
class _Piece:
    """One tensor of theirs and the box of ours that it is."""

    spec: TensorSpec
    ours: str
    shape: tuple[int, ...]
    """Of the box."""
    lead: tuple[int, ...]
    """The place in a stack; empty for a tensor that is one of ours."""
    is_buffer: bool

    def read(self, regions: RegionReader) -> Iterator[torch.Tensor]:
        """Its elements, some rows at a time."""
        shape, ones = self.shape, (1,) * len(self.lead)
        if not shape:
            yield self._read(regions, self.lead, ones)
            return
        row_bytes = max(1, self.spec.num_bytes // max(1, shape[0]))
        step = max(1, _PIECE_BYTES // row_bytes)
        for row in range(0, shape[0], step):
            offsets = (*self.lead, row, *(0,) * (len(shape) - 1))
            sizes = (*ones, min(step, shape[0] - row), *shape[1:])
            yield self._read(regions, offsets, sizes)

    def _read(self, regions: RegionReader, offsets: tuple[int, ...], sizes: tuple[int, ...]) -> torch.Tensor:
        found = regions.read(self.ours, offsets, sizes)
        check_finite(found, self.ours, regions.path, self.spec.dtype, may_be_infinite=self.is_buffer)
        return found.to(self.spec.dtype)


def read_model_config(path: Path) -> ModelConfig:
    """The model's configuration in a file: a run's config.json, a model's own JSON, or a config.json of theirs."""
    data = read_json(path)
    if "$class" not in data:
        return find_family(data.get("model_type"), path).from_hf_config(data)
    config = read_config(path, data)
    model = getattr(config, "model", config)
    if not isinstance(model, ModelConfig):
        raise CheckpointError(f"{path} does not describe a model", why=f"it holds a {type(config).__name__}")
    check_described(model, path)
    return model


def _plan_theirs(
    manifest: CheckpointManifest, entry: Entry, ours: Mapping[str, TensorOfModel], dtype: torch.dtype | None
) -> Iterator[tuple[str, _Piece]]:
    name, described = MODEL_PREFIX + entry.ours, ours[entry.ours]
    stored = find_dtype(manifest.tensors[name].dtype)
    chosen = dtype if dtype is not None and not described.is_buffer else stored
    shape = described.shape[1:] if entry.stacked else described.shape
    for number, theirs in enumerate(entry.theirs):
        spec = TensorSpec(theirs, chosen, entry.shape_theirs(described.shape))
        yield theirs, _Piece(spec, name, shape, (number,) if entry.stacked else (), described.is_buffer)


def _find_main_dtype(pieces: Iterable[_Piece]) -> str:
    """The type of most of the weights, which is what config.json states."""
    sizes: dict[torch.dtype, int] = {}
    for piece in pieces:
        sizes[piece.spec.dtype] = sizes.get(piece.spec.dtype, 0) + piece.spec.num_bytes
    return str(max(sizes, key=lambda dtype: sizes[dtype])).removeprefix("torch.")


def _write_json(disk: Disk, path: Path, value: Mapping[str, Any]) -> None:
    try:
        text = json.dumps(value, indent=2, allow_nan=False)
    except ValueError as error:
        raise CheckpointError(f"{path.name} cannot be written", why=f"a value of it is no JSON: {error}") from None
    write_file(disk, path, f"{text}\n".encode())
