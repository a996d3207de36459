"""A Hugging Face folder as a checkpoint of step 0, tensor by tensor: a model is never in memory, not even once.

Which tensor of ours is which of theirs is said in `models/<family>/hf.py`; here bytes are moved. Every name and shape
is checked before the first byte is written, and the checkpoint appears under its name only when it is whole. Tokenizer,
chat template and generation settings are part of it.
"""

import secrets
from dataclasses import dataclass
from pathlib import Path

import torch

from monograph.config.json_form import to_json
from monograph.errors import CheckpointError
from monograph.log import get_log
from monograph.manifest.fields import FileRecord
from monograph.models.model_config import ModelConfig
from monograph.system.foreign_text import show
from monograph.train.checkpoint.disk import Disk, new_folder, write_file
from monograph.train.checkpoint.hf_assets import find_assets, read_asset
from monograph.train.checkpoint.hf_weights import HfWeights
from monograph.train.checkpoint.manifest import MANIFEST_NAME, CheckpointManifest, Chunk, TensorRecord, render_manifest
from monograph.train.checkpoint.model_source import MODEL_VALUE
from monograph.train.checkpoint.tensor_file import TensorSpec, name_dtype, split_files, write_tensor_file

IMPORT_FILE_BYTES = 4 << 30

log = get_log(__name__)


@dataclass(frozen=True)
class Moved:
    """What an import or export wrote."""

    path: Path
    config: ModelConfig
    n_tensors: int
    n_bytes: int
    n_files: int
    assets: tuple[str, ...] = ()
    """Names of the tokenizer's and other small files that went with the weights."""


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
    weights = HfWeights(source, dtype=dtype)
    specs, assets = weights.specs, find_assets(source)
    files = split_files((spec for spec in specs if spec.num_bytes), max_file_bytes)
    check_absent(target)
    with new_folder(disk, target) as prepared:
        records: dict[str, FileRecord] = {}
        tensors = {spec.key: _record(spec, "") for spec in specs if not spec.num_bytes}
        for number, part in enumerate(files, start=1):
            name = f"import-{number:05d}.safetensors"
            records[name] = write_tensor_file(disk, prepared / name, part, weights.read)
            tensors |= {spec.key: _record(spec, name) for spec in part}
            log.info("%s: wrote file %d of %d", target, number, len(files))
        for name, path in assets.items():
            data = read_asset(path)
            records[name] = FileRecord(len(data), write_file(disk, prepared / name, data))
        values = {MODEL_VALUE: to_json(weights.config)}
        manifest = CheckpointManifest(0, 0, secrets.token_hex(8), values, tensors, records)
        write_file(disk, prepared / MANIFEST_NAME, render_manifest(manifest))
    size = sum(spec.num_bytes for spec in specs)
    return Moved(target, weights.config, len(specs), size, len(files), tuple(assets))


def _record(spec: TensorSpec, file: str) -> TensorRecord:
    chunks = (Chunk((0,) * len(spec.shape), spec.shape, file, spec.key),) if spec.num_bytes else ()
    return TensorRecord(name_dtype(spec.dtype, spec.key), spec.shape, chunks)


def check_absent(target: Path) -> None:
    """Refuse to write where something is, and through a link."""
    if target.is_symlink():
        raise CheckpointError(
            f"{show(target)} is a link", why=f"it leads to {show(target.readlink())}", do="give the folder itself"
        )
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise CheckpointError(
            f"{target} exists", why="nothing is ever overwritten", do="remove it, or choose another name"
        )
