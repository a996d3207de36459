"""Settings in which runs differ, from the config.json of each. Loads without torch.

The files are compared as JSON: runs of another version of the program have fields that this one does not know.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.system.foreign_json import read_json
from monograph.system.foreign_text import show

MAX_ROWS = 200
_MAX_LENGTH = 120
_OWN_FOLDER = "job.dump_folder"
"""Differs between any two runs."""


def read_settings(folder: Path) -> dict[str, str]:
    """Every setting by its dotted path, as text; empty for a folder without config.json."""
    try:
        config = read_json(folder / "config.json")
    except FileNotFoundError:
        return {}
    return {path: _format(value) for path, value in _flatten(config, "")}


def compare_settings(settings: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """The settings that are not the same in all runs: `rows` of a path and each run's value, None where it has none.

    Runs without config.json say nothing about any setting, and are not compared.
    """
    known = [each for each in settings if each]
    paths = dict.fromkeys(path for each in known for path in each if path != _OWN_FOLDER)
    differing = [path for path in paths if len({each.get(path) for each in known}) > 1]
    rows = [{"path": path, "values": [each.get(path) for each in settings]} for path in differing[:MAX_ROWS]]
    return {"rows": rows, "same": len(paths) - len(differing), "left_out": len(differing) - len(rows)}


def _flatten(value: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        path = f"{prefix}{show(name, max_length=_MAX_LENGTH)}"
        if isinstance(inner, dict) and inner:
            yield from _flatten(inner, f"{path}.")
        else:
            yield path, inner


def _format(value: Any) -> str:
    return show(value if isinstance(value, str) else strict_json.dump(value), max_length=_MAX_LENGTH)
