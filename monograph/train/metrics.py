"""What each step measured: always a line of JSON, on request TensorBoard and W&B as well.

Losses and norms are written exactly as computed: a float32 becomes the shortest decimal that names it as a double,
so two runs can be compared bit for bit from their files. A line is strict JSON: a number that is not finite is null and
is named under `non_finite`.
"""

import functools
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.config.configurable import Configurable
from monograph.line_file import FileCalls, LineFile
from monograph.log import get_log
from monograph.system.own_file import create_own, open_own
from monograph.train.config import MetricsConfig
from monograph.train.records import drop_later_records
from monograph.train.set_aside import find_free, set_aside
from monograph.train.sinks import GuardedSink, TensorBoardSink, WandbSink, check_installed
from monograph.train.write_failures import WriteFailures, find_reason, watch_lines

log = get_log("metrics")


class Metrics(Configurable):
    """Appends one record a step to metrics.jsonl and hands its numbers to the chosen sinks.

    A disk that refuses ends nothing (see `trouble`): lines wait in memory, sinks are opened again later.
    """

    Config = MetricsConfig

    def __init__(
        self,
        config: MetricsConfig,
        *,
        folder: Path,
        run: Mapping[str, Any],
        is_writer: bool = True,
        calls: FileCalls | None = None,
    ) -> None:
        self.path = folder / "metrics.jsonl"
        self._config, self._run, self._is_writer = config, run, is_writer
        self._lines = LineFile(self.path, calls=calls)
        self._failures = WriteFailures(self.path.name)
        self._is_open = False
        self._sinks: list[GuardedSink] = []
        if is_writer:
            check_installed([name for name in ("tensorboard", "wandb") if getattr(config, name)])

    def start(self, step: int, *, goes_back: bool = False) -> None:
        """Continue after `step`: records of later steps belong to a run that did not last and are dropped.

        A run that goes back to an earlier step on purpose keeps a copy of them.
        """
        if not self._is_writer:
            return
        folder = self.path.parent
        try:
            self._make_ready(step, goes_back=goes_back)
        except OSError as error:
            self._failures.failed(error)
        self._is_open = True
        if self._config.tensorboard:
            self._sinks.append(GuardedSink("tensorboard", lambda done: TensorBoardSink(folder / "tensorboard", done)))
        if self._config.wandb:
            continues = step > 0 and not goes_back
            make = functools.partial(WandbSink, folder, self._run, continues=continues)
            self._sinks.append(GuardedSink("wandb", lambda _: make(), reopens=False))
        for sink in self._sinks:
            sink.start(step)

    def write(self, record: Mapping[str, Any]) -> None:
        """Add one record; it is on its way to the disk when this returns, so a killed run keeps its history."""
        if not self._is_open:
            return
        self._lines.write(strict_json.dump(record), step=record["step"])
        watch_lines(self._lines, self._failures)
        scalars = {name: float(v) for name, v in _flatten(record) if name != "step" and math.isfinite(v)}
        for sink in self._sinks:
            sink.write(record["step"], scalars)

    def close(self) -> None:
        """Close the file and every sink. Safe to call twice."""
        for sink in self._sinks:
            sink.close()
        if self._is_open:
            self._is_open = False
            self._lines.close()
            watch_lines(self._lines, self._failures)

    def find_missing(self) -> list[str]:
        """What could not be written, one line each; complete after `close`."""
        texts = [self._lines.describe_missing(), *(sink.failures.describe() for sink in self._sinks)]
        return [text for text in texts if text]

    def _make_ready(self, step: int, *, goes_back: bool) -> None:
        if not self.path.exists():
            return
        if goes_back:
            _copy(self.path, find_free(self.path))
        if not step:
            set_aside(self.path)
            return
        try:
            drop_later_records(self.path, step)
        except OSError as error:
            kept = set_aside(self.path)
            log.warning("%s cannot be continued (%s): it is now %s", self.path, find_reason(error), kept)


def _copy(path: Path, target: Path) -> None:
    """Copy a file of this run to a name that nothing has."""
    with open(open_own(path, os.O_RDONLY), "rb") as file, open(create_own(target), "wb") as copy:
        shutil.copyfileobj(file, copy)


def _flatten(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, float]]:
    """Every number in a record with a path: lists get their index, so per-layer values become their own curves."""
    found: list[tuple[str, float]] = []
    for name, value in record.items():
        if isinstance(value, Mapping):
            found += _flatten(value, f"{prefix}{name}/")
        elif isinstance(value, list):
            found += _flatten({str(index): item for index, item in enumerate(value)}, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((f"{prefix}{name}", value))
    return found
