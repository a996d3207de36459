"""Errors that teach: what was written, why it cannot work, what to write instead.

Everything a user can get wrong ends in one of these, printed without a traceback by the command line.
A traceback is for our bugs only.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path

from monograph.renamed import find_new_name

EXIT_FAILED = 1
"""The run itself failed: a training fault, a comparison that differs."""
EXIT_WRONG_INPUT = 2
"""The request could not be carried out as written; nothing was started."""


class MonographError(Exception):
    """An error meant for a person: `what` happened, `why`, and what to `do` about it."""

    exit_code = EXIT_FAILED
    label = "error"
    """What it is called where it is shown."""

    def __init__(self, what: str, *, why: str = "", do: str = "") -> None:
        self.what, self.why, self.do = what, why, do
        super().__init__("\n".join(part for part in (what, why and f"why: {why}", do and f"do:  {do}") if part))


class ConfigError(MonographError):
    """The configuration or the command line asks for something that cannot work."""

    exit_code = EXIT_WRONG_INPUT


class DataError(MonographError):
    """The training data is missing, empty, or does not fit the model."""

    exit_code = EXIT_WRONG_INPUT


class CheckpointError(MonographError):
    """A checkpoint is damaged, incomplete or does not fit this run."""


def find_nearest(name: str, choices: Iterable[str], *, cutoff: float = 0.5) -> str:
    """The choice that looks most like `name`, or an empty string when none is close."""
    found = difflib.get_close_matches(name, list(choices), n=1, cutoff=cutoff)
    return found[0] if found else ""


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """A sentence for an error's `do` part: the new name, the nearest choice, or all of them when none is close."""
    choices = sorted(choices)
    if new := find_new_name(name, choices):
        return f"it is called '{new}' now"
    nearest = find_nearest(name, choices)
    return f"did you mean '{nearest}'?" if nearest else f"choose one of: {', '.join(choices)}"


def describe_install(extra: str, package: str) -> str:
    """The command that installs an optional package: by the extra of this checkout, where there is one.

    Never by the name of this project from a package index, where it may be another package.
    """
    root = Path(__file__).resolve().parent.parent
    return f"pip install -e '{root}[{extra}]'" if (root / "pyproject.toml").is_file() else f"pip install {package}"
