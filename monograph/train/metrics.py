"""What each step measured: always a line of JSON, on request TensorBoard and W&B as well.

Losses and norms are written exactly as computed: a float32 becomes the shortest decimal that names it as a double,
so two runs can be compared bit for bit from their files.
"""

import importlib.util
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.log import get_log
from monograph.train.config import MetricsConfig
from monograph.train.folder import set_aside

log = get_log("metrics")


class Sink(Protocol):
    """A place that scalar values are sent to besides metrics.jsonl."""

    def write(self, step: int, values: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Metrics(Configurable):
    """Appends one record a step to metrics.jsonl and hands its numbers to the chosen sinks."""

    Config = MetricsConfig

    def __init__(self, config: MetricsConfig, *, folder: Path, run: Mapping[str, Any], is_writer: bool = True) -> None:
        self.path = folder / "metrics.jsonl"
        self._config, self._run, self._is_writer = config, run, is_writer
        self._file: Any = None
        self._sinks: list[Sink] = []
        if is_writer:
            _check_installed([name for name in ("tensorboard", "wandb") if getattr(config, name)])

    def start(self, step: int) -> None:
        """Continue after `step`: records of later steps belong to a run that did not last and are dropped."""
        if not self._is_writer:
            return
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        if step:
            kept = [line for line in _read_lines(self.path) if _step_of(line) <= step]
            replacement = self.path.with_suffix(".tmp")
            replacement.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
            os.replace(replacement, self.path)
        elif self.path.exists():
            set_aside(self.path)
        self._file = self.path.open("a", encoding="utf-8")
        if self._config.tensorboard:
            self._sinks.append(_TensorBoard(folder / "tensorboard", step))
        if self._config.wandb:
            self._sinks.append(_WeightsAndBiases(folder, self._run))

    def write(self, record: Mapping[str, Any]) -> None:
        """Add one record; it is on its way to the disk when this returns, so a killed run keeps its history."""
        if self._file is None:
            return
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        scalars = {name: float(v) for name, v in _flatten(record) if name != "step" and math.isfinite(v)}
        for sink in self._sinks:
            sink.write(record["step"], scalars)

    def close(self) -> None:
        """Close the file and every sink. Safe to call twice."""
        for sink in self._sinks:
            sink.close()
        self._sinks = []
        if self._file is not None:
            self._file.close()
            self._file = None


class _TensorBoard:
    def __init__(self, folder: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=done + 1 if done else None)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _WeightsAndBiases:
    def __init__(self, folder: Path, run: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(dir=str(folder), config=dict(run), project="monograph")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


def _check_installed(packages: list[str]) -> None:
    """Refuse a sink whose package is missing when the run is put together, not after hours of loading."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"metrics.{package} is on but the package {package} is not installed",
                why="it is an optional extra",
                do=f"pip install 'monograph[{package}]', or --metrics.{package} false",
            )


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


def _read_lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def _step_of(line: str) -> float:
    """The step of a record; a line cut short by a kill counts as later than any step, so that it is dropped."""
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return math.inf
