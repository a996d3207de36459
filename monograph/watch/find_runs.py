"""The runs in a folder of runs, such as `outputs`. Loads without torch."""

import os
from collections.abc import Sequence
from pathlib import Path

from monograph.errors import ConfigError
from monograph.plurals import counted
from monograph.system.foreign_json import open_regular
from monograph.system.foreign_text import show

FILES = ("metrics.jsonl", "config.json")
"""A folder with either is a run."""
MAX_SHOWN = 6
"""Runs of one folder on a page, which has as many colors."""
_MAX_LISTED = 8
_MAX_ENTRIES = 10_000


def choose_runs(name: str) -> tuple[list[Path], str]:
    """The runs that a folder stands for, and a sentence on those that are left out.

    A run stands for itself. Any other folder stands for the runs in it, the last written first.
    """
    folder = Path(name)
    if not folder.is_dir():
        raise ConfigError(f"{name} is not a folder", why="a run leaves its metrics in its job.dump_folder")
    if is_run(folder):
        return [folder], ""
    runs = list_runs(folder)
    if not runs:
        raise ConfigError(
            f"no run in {name}",
            why=f"neither it nor a folder in it has {' or '.join(FILES)}",
            do="name the job.dump_folder of a run, or the folder above it",
        )
    left_out = [show(run.name) for run in runs[MAX_SHOWN:]]
    if not left_out:
        return runs, ""
    names = ", ".join(left_out[:_MAX_LISTED]) + (", ..." if len(left_out) > _MAX_LISTED else "")
    note = f"{show(name)} has {counted(len(runs), 'run')}; the last {MAX_SHOWN} are shown, not {names}"
    return runs[:MAX_SHOWN], note


def list_runs(folder: Path) -> list[Path]:
    """Runs directly inside a folder, the last written first."""
    with os.scandir(folder) as entries:
        names = [entry.name for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False) if entry.is_dir()]
    runs = [folder / name for name in names if _is_readable_run(folder / name)]
    return sorted(runs, key=lambda run: (-_find_time(run), run.name))


def is_run(folder: Path) -> bool:
    """Whether a folder is a run; ConfigError when its files are there and cannot be read."""
    return any([_is_readable(folder / file) for file in FILES])


def name_runs(folders: Sequence[Path]) -> str:
    """Names for a line of output."""
    return ", ".join(show(folder.name) for folder in folders)


def _is_readable(path: Path) -> bool:
    try:
        open_regular(path).close()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}", why=str(error.strerror), do="name another run, or move it away"
        ) from None
    return True


def _is_readable_run(folder: Path) -> bool:
    try:
        return is_run(folder)
    except (ConfigError, ValueError):
        return False  # another user's, or no regular file: the other runs are still shown


def _find_time(folder: Path) -> float:
    times = []
    for file in FILES:
        try:
            times.append((folder / file).stat().st_mtime)
        except OSError:
            continue
    return max(times, default=0.0)
