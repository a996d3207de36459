"""`monograph hf import` and `monograph hf export`."""

import sys
from pathlib import Path

import torch

from monograph.locks.folder_lock import locked_output
from monograph.log import set_up_log
from monograph.train.checkpoint.arguments import HfExportArguments, HfImportArguments
from monograph.train.checkpoint.choose import choose
from monograph.train.checkpoint.hf import Moved, export_hf, import_hf, read_model_config
from monograph.train.checkpoint.ranks import Ranks
from monograph.train.checkpoint.store import Store
from monograph.train.checkpoint.tensor_file import find_dtype


def import_command(arguments: HfImportArguments) -> int:
    """Make a checkpoint of a Hugging Face model, and say how to train from it."""
    set_up_log()
    with locked_output(Path(arguments.out)):
        moved = import_hf(Path(arguments.source), Path(arguments.out), dtype=_choose_dtype(arguments.dtype))
    _report(moved)
    sys.stdout.write(f"train from it: --checkpoint.load {moved.path} --checkpoint.load_model_only True\n")
    return 0


def export_command(arguments: HfExportArguments) -> int:
    """Make a Hugging Face folder of a checkpoint's weights."""
    set_up_log()
    path = Path(arguments.checkpoint)
    checkpoint, _ = choose(Store(path), path, Ranks())
    with locked_output(Path(arguments.out)):
        moved = export_hf(
            checkpoint,
            Path(arguments.out),
            config=read_model_config(Path(arguments.config)) if arguments.config else None,
            dtype=_choose_dtype(arguments.dtype),
            max_file_bytes=round(arguments.max_file_gb * 1e9),
        )
    _report(moved)
    return 0


def _choose_dtype(name: str) -> torch.dtype | None:
    return None if name == "stored" else find_dtype(name)


def _report(moved: Moved) -> None:
    model = type(moved.config).__name__.removesuffix("Config")
    files = "file" if moved.n_files == 1 else "files"
    size = f"{moved.n_bytes / 1e9:.1f} GB" if moved.n_bytes >= 1e9 else f"{moved.n_bytes / 1e6:.1f} MB"
    sys.stdout.write(f"{moved.path}: {model}, {moved.n_tensors} tensors, {size} in {moved.n_files} {files}\n")
