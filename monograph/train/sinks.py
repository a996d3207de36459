"""Where scalar values go besides metrics.jsonl: TensorBoard, Weights & Biases. A failing one does not end a run."""

import contextlib
import importlib.util
import os
import re
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from monograph.errors import ConfigError, describe_install
from monograph.system.foreign_json import UnusableFile, read_text
from monograph.system.foreign_text import show
from monograph.train.write_failures import RetriedWrite, find_reason
from monograph.whole_file import write_whole

WANDB_ID = "wandb_id.txt"
"""In a run's folder: which run of Weights & Biases it is."""
_ID = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class Sink(Protocol):
    """Something that scalar values are sent to besides metrics.jsonl."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class GuardedSink:
    """A sink that may fail at any step and is tried again later: opened anew when it `reopens`, else as it is."""

    def __init__(self, name: str, make: Callable[[int], Sink], *, reopens: bool = True) -> None:
        self._name, self._make, self._reopens = name, make, reopens
        self._sink: Sink | None = None
        self._attempts = RetriedWrite(name)
        self.failures = self._attempts.failures

    def start(self, done: int) -> None:
        """Open it. A disk that refuses is no error yet, anything else is: it would never work."""
        try:
            self._sink = self._make(done)
        except OSError as error:
            self.failures.failed(error)
        except Exception as error:
            raise ConfigError(
                f"metrics.{self._name} cannot be started", why=find_reason(error), do=f"--metrics.{self._name} false"
            ) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Send one step's values, or note that they are missing."""
        is_done = self._attempts.attempt(step, lambda: self._send(step, values))
        if not is_done and self._reopens:
            self._drop()

    def close(self) -> None:
        """Close it. Safe to call twice."""
        sink, self._sink = self._sink, None
        if sink is not None:
            try:
                sink.close()
            except Exception as error:
                self.failures.failed(error)

    def _send(self, step: int, values: Mapping[str, float]) -> None:
        if self._sink is None:
            self._sink = self._make(0)
        self._sink.write(step, values)

    def _drop(self) -> None:
        """Release a sink that failed, as far as it lets itself."""
        sink, self._sink = self._sink, None
        if sink is not None:
            with contextlib.suppress(Exception):
                sink.close()


class TensorBoardSink:
    """Event files of TensorBoard; a run that continues hides what an earlier one wrote beyond `done` steps."""

    def __init__(self, folder: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbSink:
    """A run of Weights & Biases: the same one over all starts of a run that continues, by an id in the run's folder.

    It keeps what it has of a step, so the steps since the last checkpoint, which are made again, are there once.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any], *, continues: bool) -> None:
        import wandb

        self._run = wandb.init(
            dir=str(folder),
            config=dict(run),
            project="monograph",
            id=os.environ.get("WANDB_RUN_ID") or _find_id(folder / WANDB_ID, continues=continues),
            resume="allow",
            allow_val_change=True,
        )

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def _find_id(path: Path, *, continues: bool) -> str:
    """The id that a run began with; a new one where it begins, or goes back and becomes another run."""
    if continues and path.is_file():
        known = read_text(path, max_bytes=1 << 10).strip()
        if not _ID.fullmatch(known):
            raise UnusableFile(
                f"cannot use {path}", why=f"it does not hold an id of Weights & Biases but {show(known)!r}"
            )
        return known
    made = secrets.token_hex(8)
    write_whole(path, f"{made}\n")
    return made


def check_installed(packages: list[str]) -> None:
    """Refuse a sink whose package is missing when the run is put together, not after hours of loading."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"metrics.{package} is on but the package {package} is not installed",
                why="it is an optional extra",
                do=f"{describe_install(package, package)}, or --metrics.{package} false",
            )
