"""Windows of steps recorded as Chrome traces that Perfetto and chrome://tracing open."""

import os
import secrets
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from monograph.config.configurable import Configurable
from monograph.execute.trace_marks import STEP_MARK
from monograph.log import get_log
from monograph.train.config import ProfilerConfig
from monograph.train.write_failures import find_reason

log = get_log("profiler")
_END_BYTES = 64


class Profiler(Configurable):
    """Starts and stops torch's profiler at step borders; does nothing when no window was asked for."""

    Config = ProfilerConfig

    def __init__(self, config: ProfilerConfig, *, folder: Path, rank: int = 0) -> None:
        self.config = config
        self.folder = folder
        self.rank = rank
        self._running: Any = None
        self._step: Any = None
        self._first = 0
        self._last = 0
        self._missing: list[str] = []

    def before_step(self, step: int) -> bool:
        """Open a window when `step` is the first of one; whether it did, which takes a while."""
        is_open = self._running is not None
        if not is_open and self._starts_at(step):
            self._open(step)
        if self._running is not None:
            self._step = record_function(f"{STEP_MARK} {step}")
            self._step.__enter__()
        return self._running is not None and not is_open

    def _open(self, step: int) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._first = self._last = step
        self._running = torch.profiler.profile(activities=activities)
        self._running.start()

    def after_step(self, step: int) -> bool:
        """Close the window after its last step and write the trace; whether it did, which takes a while."""
        if self._running is None:
            return False
        self._leave_step()
        self._last = step
        if step - self._first + 1 < self.config.steps:
            return False
        self.write_trace()
        return True

    def _leave_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None

    def close(self) -> None:
        """Write what a window cut short by the end of training has seen."""
        self._leave_step()
        if self._running is not None:
            self.write_trace()

    def _starts_at(self, step: int) -> bool:
        start, every = self.config.start, self.config.every
        if start == 0 or step < start:
            return False
        return step == start or (every > 0 and (step - start) % every == 0)

    def find_missing(self) -> list[str]:
        """The traces that could not be written, and why."""
        return self._missing

    def write_trace(self) -> None:
        """Close the window and write its trace, under another name first: a viewer never sees half of one.

        There is no second try: torch writes a trace only once.
        """
        running, self._running = self._running, None
        running.stop()
        name = f"steps-{self._first}-{self._last}-rank-{self.rank}.json"
        path, prepared = self.folder / name, self.folder / f".{name}.{secrets.token_hex(4)}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            running.export_chrome_trace(str(prepared))
            if not _is_whole(prepared):
                raise RuntimeError("torch could not write it; is the disk full?")
            prepared.rename(path)
        except (OSError, RuntimeError) as error:
            for part in self.folder.glob(f"{prepared.name}*"):
                part.unlink(missing_ok=True)
            self._missing.append(f"{self.folder.name}/{name} is missing: {find_reason(error)}")
            log.warning("%s cannot be written (%s): training goes on without it", path, find_reason(error))
            return
        log.info("profile of steps %d to %d: %s", self._first, self._last, path)


def _is_whole(path: Path) -> bool:
    """Whether a trace is all there: torch does not say when the disk refused a part of it."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        file.seek(max(0, os.path.getsize(path) - _END_BYTES))
        return file.read().rstrip().endswith(b"}")
