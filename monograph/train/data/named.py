"""Datasets with names, as they are written on a command line: `NAME=DATASET`, `NAME=WEIGHT:DATASET`.

Loads without torch.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from monograph.errors import ConfigError

VALIDATION = "validation"
"""The name of a validation set that was given none."""
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class NamedDataset:
    """One dataset of several."""

    name: str
    dataset: str
    """As in dataloader.dataset."""
    weight: float = 1.0
    """Its part of the samples, as a share of the sum of all weights."""


def parse_mixture(entries: Sequence[str]) -> list[NamedDataset]:
    """The datasets of `--dataloader.mixture web=0.7:data/web code=0.3:data/code`."""
    found = []
    for entry in entries:
        name, equals, rest = entry.partition("=")
        weight, colon, dataset = rest.partition(":")
        value = _read_weight(weight)
        if not equals or not colon or not dataset or not _NAME.fullmatch(name):
            raise ConfigError(
                f"mixture has {entry!r}",
                why="it is not NAME=WEIGHT:DATASET",
                do="for example: --dataloader.mixture web=0.7:data/web code=0.3:data/code",
            )
        if value is None:
            raise ConfigError(
                f"mixture: the weight of {name} is {weight!r}",
                why="it must be a number above 0",
                do=f"{name}=1:{dataset}",
            )
        found.append(NamedDataset(name, dataset, value))
    _check_names(found, "mixture")
    return found


def parse_validation_sets(entries: Sequence[str]) -> list[NamedDataset]:
    """The datasets of `--dataloader.validation_datasets books=data/books.txt`; one alone needs no name."""
    found = []
    for entry in entries:
        name, equals, dataset = entry.partition("=")
        if not equals and len(entries) == 1:
            name, dataset = VALIDATION, entry
        if not dataset or not _NAME.fullmatch(name):
            raise ConfigError(
                f"validation_datasets has {entry!r}",
                why="several validation sets are told apart by names: NAME=DATASET",
                do="for example: --dataloader.validation_datasets books=data/books.txt web=data/web.jsonl",
            )
        found.append(NamedDataset(name, dataset))
    _check_names(found, "validation_datasets")
    return found


def _read_weight(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def _check_names(found: Sequence[NamedDataset], field: str) -> None:
    names = [each.name for each in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ConfigError(f"{field} has two sets called {twice}", why="a name stands for one of them", do="rename one")
