"""`monograph hf import` and `monograph hf export`."""

import shlex
from pathlib import Path

import torch

from monograph.locks.folder_lock import locked_output
from monograph.log import set_up_log
from monograph.system.console import print_plain
from monograph.train.checkpoint.arguments import HfExportArguments, HfImportArguments
from monograph.train.checkpoint.choose import choose
from monograph.train.checkpoint.hf_assets import TOKENIZER_NAME
from monograph.train.checkpoint.hf_export import export_hf, read_model_config
from monograph.train.checkpoint.hf_import import Moved, import_hf
from monograph.train.checkpoint.hf_source import resolve_source
from monograph.train.checkpoint.model_source import find_checkpoints, find_run_tokenizer, find_tokenizer
from monograph.train.checkpoint.ranks import Ranks
from monograph.train.checkpoint.store import Store
from monograph.train.checkpoint.tensor_file import find_dtype
from monograph.train.data.tokenizer_config import TokenizerConfig


def import_command(arguments: HfImportArguments) -> int:
    """Make a checkpoint of a Hugging Face model, and say how to train from it."""
    set_up_log()
    source = resolve_source(arguments.source)
    with locked_output(Path(arguments.out)):
        moved = import_hf(source, Path(arguments.out), dtype=_choose_dtype(arguments.dtype))
    _report(moved)
    print_plain(f"train from it: {shlex.join(['monograph', 'train', '--model.from', str(moved.path)])}")
    return 0


def export_command(arguments: HfExportArguments) -> int:
    """Make a Hugging Face folder of a checkpoint's weights."""
    set_up_log()
    path = find_checkpoints(Path(arguments.checkpoint))
    checkpoint = choose(Store(path), path, Ranks())
    with locked_output(Path(arguments.out)):
        moved = export_hf(
            checkpoint,
            Path(arguments.out),
            config=read_model_config(Path(arguments.config)) if arguments.config else None,
            dtype=_choose_dtype(arguments.dtype),
            tokenizer=choose_tokenizer(arguments.tokenizer, checkpoint.path),
            max_file_bytes=round(arguments.max_file_gb * 1e9),
        )
    _report(moved)
    return 0


def choose_tokenizer(word: str, checkpoint: Path) -> TokenizerConfig | None:
    """The tokenizer that goes with a checkpoint: a folder's, or the one it was imported or trained with."""
    if word == "none":
        return None
    if word != "auto":
        return find_tokenizer(Path(word))
    return find_tokenizer(checkpoint) or find_run_tokenizer(checkpoint.resolve().parent.parent)


def _choose_dtype(name: str) -> torch.dtype | None:
    return None if name == "stored" else find_dtype(name)


def _report(moved: Moved) -> None:
    model = type(moved.config).__name__.removesuffix("Config")
    files = "file" if moved.n_files == 1 else "files"
    size = f"{moved.n_bytes / 1e9:.1f} GB" if moved.n_bytes >= 1e9 else f"{moved.n_bytes / 1e6:.1f} MB"
    tokenizer = "with its tokenizer" if TOKENIZER_NAME in moved.assets else "without a tokenizer"
    print_plain(f"{moved.path}: {model}, {moved.n_tensors} tensors, {size} in {moved.n_files} {files}, {tokenizer}")
