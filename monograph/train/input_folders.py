"""Inputs of a run that lie in its folder or around it: at its next start they would be other data, or gone.

Loads without torch.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError
from monograph.system.foreign_text import show
from monograph.train.data.config import BUILTIN, HUB_PREFIX
from monograph.train.data.named import parse_mixture, parse_validation_sets
from monograph.train.data.shard_index import INDEX
from monograph.train.earlier_run import has_run


def find_datasets(config: Any) -> list[str]:
    """Every dataset that a run reads by its name."""
    loader = config.dataloader
    names = [] if loader.source is not None else [each.dataset for each in parse_mixture(loader.mixture)]
    if loader.source is None and not names:
        names = [loader.dataset]
    if config.validator.interval:
        names += [each.dataset for each in parse_validation_sets(loader.validation_datasets)]
    return names


def check_input_folders(config: Any) -> None:
    """Refuse a run folder that a dataset's files lie around, or that would be moved aside with an input in it."""
    folder = Path(os.path.realpath(config.job.dump_folder))
    is_new = not config.checkpoint.load or config.checkpoint.load_model_only
    is_moved = is_new and has_run(folder)
    for flag, name in _find_inputs(config):
        path = Path(os.path.realpath(name))
        if flag == "dataset" and _reads_below(path, folder):
            raise ConfigError(
                f"job.dump_folder is {config.job.dump_folder}, in the folder of the dataset {name}",
                why="the next start would read the run's own records as data",
                do="choose a --job.dump_folder outside of the dataset",
            )
        if is_moved and path.is_relative_to(folder):
            raise ConfigError(
                f"job.dump_folder is {config.job.dump_folder}, and the {flag} {name} lies in it",
                why="an earlier run's folder is renamed for a new run, and the next start would not find it",
                do=f"choose another --job.dump_folder, or move the {flag} out of it",
            )


def check_report_folder(flag: str, out: str, config: Any) -> None:
    """Refuse a folder for a report whose texts a dataset of the run would take for its own."""
    folder = Path(os.path.realpath(out))
    for kind, name in _find_inputs(config):
        if kind == "dataset" and _reads_below(Path(os.path.realpath(name)), folder):
            raise ConfigError(
                f"{flag} {show(out)}, in the folder of the dataset {show(name)}",
                why="the run would read the report as data",
                do=f"choose a folder for {flag} outside of the dataset",
            )


def _find_inputs(config: Any) -> Iterator[tuple[str, str]]:
    """What each start of a run reads by its path."""
    names = [("dataset", name) for name in find_datasets(config) if name != BUILTIN]
    names += [("tokenizer", getattr(config.tokenizer, "path", "")), ("artifact", config.compile.artifact)]
    yield from ((flag, name) for flag, name in names if name and not name.startswith(HUB_PREFIX))


def _reads_below(dataset: Path, folder: Path) -> bool:
    """Whether the files of a folder are read as parts of a dataset: not those of hidden folders, nor beside shards."""
    if not folder.is_relative_to(dataset) or (dataset / INDEX).exists() or dataset.is_file():
        return False
    return not any(part.startswith(".") for part in folder.relative_to(dataset).parts)
