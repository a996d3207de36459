"""Whether a folder holds a run of this program: only such a folder is moved aside or written over. Without torch."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from monograph.errors import ConfigError
from monograph.system.foreign_json import UnusableFile, open_regular, read_file, read_json
from monograph.train.checkpoint.hf_assets import ASSETS_FOLDER
from monograph.train.checkpoint.store import Store
from monograph.train.records import parse_record

CONFIG_FILE, METRICS_FILE, CHECKPOINTS_FOLDER = "config.json", "metrics.jsonl", "checkpoints"
_FURTHER_FILES = ("config.history.jsonl", "goodput.jsonl", "numerics.txt")
_OF_A_RECORD = {"step", "loss", "tokens", "cursor"}
_FIRST_BYTES = 1 << 20


def has_run(folder: Path) -> bool:
    """Whether a folder holds files of the names that a run leaves.

    An empty folder of checkpoints does not count: it may be a link to a large disk, made for the run to come.
    """
    if any(os.path.lexists(folder / name) for name in (CONFIG_FILE, METRICS_FILE)):
        return True
    return bool(Store(folder / CHECKPOINTS_FOLDER).find_all())


def check_ours(folder: Path, assets: Mapping[str, bytes]) -> None:
    """Raise ConfigError for files that a run would replace and that no run has left: they are somebody's work.

    `assets` are the files of the run's tokenizer, which go into a folder of their own.
    """
    why = _find_foreign(folder) or _find_foreign_asset(folder, assets)
    if why:
        raise ConfigError(
            f"job.dump_folder is {folder}",
            why=f"{why}; a run moves or replaces files of runs only",
            do="choose another --job.dump_folder, or move these files away yourself",
        )


def _find_foreign(folder: Path) -> str:
    """Why the folder is not taken for a run; empty when it is one, or holds nothing of these names."""
    if os.path.lexists(folder / CONFIG_FILE):
        return _check_config(folder / CONFIG_FILE)
    if Store(folder / CHECKPOINTS_FOLDER).find_all():
        return ""
    if os.path.lexists(folder / METRICS_FILE):
        return _check_metrics(folder / METRICS_FILE)
    found = [name for name in _FURTHER_FILES if _is_filled(folder / name)]
    return f"it has a {found[0]} and no {CONFIG_FILE} of a run" if found else ""


def _find_foreign_asset(folder: Path, assets: Mapping[str, bytes]) -> str:
    """Why the tokenizer cannot be kept in the folder; the same files that are there already are no reason."""
    kept = folder / ASSETS_FOLDER
    if not kept.is_symlink() and has_run(folder):
        return ""
    for name, data in assets.items():
        if os.path.lexists(kept / name) and not is_file_with(kept / name, data):
            return f"{kept / name} is another tokenizer's, and no run has left it"
    if kept.is_symlink() and not all(os.path.lexists(kept / name) for name in assets):
        return f"{kept} is a link, and the tokenizer would be written where it leads"
    return ""


def is_file_with(path: Path, data: bytes) -> bool:
    """Whether a file has this content."""
    try:
        return read_file(path, max_bytes=len(data)) == data
    except (OSError, UnusableFile):
        return False


def _is_filled(path: Path) -> bool:
    """Whether there is anything but an empty file, which a full disk leaves."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return status.st_size > 0 or not stat.S_ISREG(status.st_mode)


def _check_config(path: Path) -> str:
    try:
        config = read_json(path, allow_nan=True)
    except (OSError, UnusableFile) as error:
        reason = error.why if isinstance(error, UnusableFile) else error.strerror
        return f"its {CONFIG_FILE} is not that of a run ({reason})"
    if isinstance(config.get("$class"), str) and isinstance(config.get("job"), dict):
        return ""
    return f"its {CONFIG_FILE} is not that of a run"


def _check_metrics(path: Path) -> str:
    """A run that a full disk has stopped leaves its records without a configuration, or an empty file."""
    try:
        with open_regular(path) as file:
            first = file.readline(_FIRST_BYTES)
    except UnusableFile:
        first = b"-"
    except OSError as error:
        return f"its {METRICS_FILE} cannot be read ({error.strerror})"
    record = parse_record(first)
    if not first or (record is not None and record.keys() >= _OF_A_RECORD):
        return ""
    return f"it has a {METRICS_FILE} and no {CONFIG_FILE} of a run"
