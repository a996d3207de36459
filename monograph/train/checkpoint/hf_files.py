"""Which files of a Hugging Face folder hold its weights: those that transformers loads, or an error. Without torch.

transformers takes model.safetensors, else the shards of model.safetensors.index.json, else pickles. A folder from which
another program would load other weights is refused, with both candidates in the error. Without an index, one file or
one complete set of shards is unambiguous; pickles are never read.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monograph.errors import CheckpointError
from monograph.system.foreign_text import show
from monograph.train.checkpoint.model_source import read_json

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
ADAPTER_NAME = "adapter_config.json"
PICKLE_NAMES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_SHARD = re.compile(r"(model.*)-(\d+)-of-(\d+)\.safetensors")


@dataclass(frozen=True)
class WeightFiles:
    """The safetensors files of a folder."""

    names: tuple[str, ...]
    index: Mapping[str, str] = field(default_factory=dict)
    """Tensors to files; empty for a folder without an index."""


def find_weight_files(folder: Path) -> WeightFiles:
    """Find the files to read, in the order in which transformers looks for them."""
    names = sorted(os.listdir(folder))
    if ADAPTER_NAME in names:
        raise CheckpointError(
            f"{folder} holds an adapter: {ADAPTER_NAME}",
            why="transformers adds its weights to those of a model (with peft installed), and adapters are not read",
            do="merge them (merge_and_unload() of peft) and save the model; or move the adapter's files away",
        )
    index = _read_index(folder / INDEX_NAME) if INDEX_NAME in names else {}
    if SINGLE_NAME in names:
        if set(index.values()) - {SINGLE_NAME}:
            raise _ambiguous(folder, SINGLE_NAME, INDEX_NAME, "the index names other files; transformers ignores it")
        return WeightFiles((SINGLE_NAME,), index)
    return (
        WeightFiles(tuple(sorted(set(index.values()))), index) if index else WeightFiles(_find_unlisted(folder, names))
    )


def _read_index(path: Path) -> dict[str, str]:
    index = read_json(path).get("weight_map")
    if not isinstance(index, dict) or not index or not all(_is_file_name(file) for file in index.values()):
        raise CheckpointError(f"{path} has no weight_map from tensors to files", do="download the folder again")
    return index


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and value.endswith(".safetensors") and not set("/\\\0") & set(value)


def _find_unlisted(folder: Path, names: Iterable[str]) -> tuple[str, ...]:
    """The files of a folder without an index: a single one, or all shards of one set."""
    sets: dict[tuple[str, int], dict[int, str]] = {}
    for name in names:
        if name.startswith("model") and name.endswith(".safetensors"):
            match = _SHARD.fullmatch(name)
            stem, number, total = (match[1], int(match[2]), int(match[3])) if match else (name, 1, 1)
            sets.setdefault((stem, total), {})[number] = name
    pickles = [name for name in names if name in PICKLE_NAMES]
    if not sets:
        raise CheckpointError(
            f"{folder} holds no {SINGLE_NAME} and no {INDEX_NAME}",
            why="only safetensors are read: older formats can run code when they are loaded",
            do="convert the model to safetensors, or download a revision that has them",
        )
    firsts = [min(files.values()) for files in sets.values()]
    if len(sets) > 1:
        raise _ambiguous(folder, firsts[0], firsts[1], f"there is no {INDEX_NAME} that chooses between them")
    if pickles:
        raise _ambiguous(
            folder, firsts[0], pickles[0], f"without {SINGLE_NAME} or an index transformers loads the latter"
        )
    ((_, total), files), *_ = sets.items()
    if set(files) != set(range(1, total + 1)):
        raise CheckpointError(
            f"{folder} holds {len(files)} of {total} shards of its weights, and no {INDEX_NAME}",
            why=f"there is {show(firsts[0])}",
            do="download the folder again",
        )
    return tuple(files[number] for number in sorted(files))


def _ambiguous(folder: Path, first: str, second: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{folder} holds weights twice: {show(first)} and {show(second)}",
        why=why,
        do="keep those that are meant and move the others away",
    )
