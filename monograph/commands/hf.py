"""`monograph hf import` and `monograph hf export`: weights from and to Hugging Face folders."""

import json
from pathlib import Path

import torch

from monograph.commands.arguments import HfExportArguments, HfImportArguments
from monograph.commands.terminal import print_plain
from monograph.config.json_form import from_json
from monograph.errors import ConfigError
from monograph.log import set_up_log
from monograph.models.config import DecoderConfig
from monograph.models.hf_map import find_family
from monograph.train.checkpoint.hf import Moved, export_hf, import_hf
from monograph.train.config import TrainerConfig


def hf_import(arguments: HfImportArguments) -> int:
    """Write the checkpoint and say how to start from it."""
    set_up_log()
    moved = import_hf(
        Path(arguments.source),
        Path(arguments.out),
        dtype=find_dtype(arguments.dtype),
        max_file_bytes=arguments.max_file_bytes,
    )
    print_plain(describe(moved))
    print_plain(f"start from it with: --checkpoint.load {moved.path} --checkpoint.load_model_only")
    return 0


def hf_export(arguments: HfExportArguments) -> int:
    """Write the Hugging Face folder."""
    set_up_log()
    moved = export_hf(
        Path(arguments.checkpoint),
        Path(arguments.out),
        config=read_model_config(Path(arguments.config)) if arguments.config else None,
        dtype=find_dtype(arguments.dtype),
        max_file_bytes=arguments.max_file_bytes,
    )
    print_plain(describe(moved))
    return 0


def find_dtype(name: str | None) -> torch.dtype | None:
    """The torch type of that name."""
    return None if name is None else getattr(torch, name)


def describe(moved: Moved) -> str:
    """What was written, in one line."""
    size = f"{moved.n_bytes / 2**30:.2f} GiB"
    return f"wrote {moved.path}: {moved.n_tensors} tensors, {size} in {moved.n_files} file(s)"


def read_model_config(path: Path) -> DecoderConfig:
    """The model that a file describes: a run's config.json, the model's part of one, or Hugging Face's config.json."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {path}", why=f"it cannot be read: {error}") from None
    if isinstance(data, dict) and "model_type" in data:
        return find_family(str(data["model_type"])).from_hf_config(data)
    config = from_json(data)
    if isinstance(config, TrainerConfig):
        return config.model
    if isinstance(config, DecoderConfig):
        return config
    raise ConfigError(f"--config {path}", why=f"it describes a {type(config).__name__}, not a model")
