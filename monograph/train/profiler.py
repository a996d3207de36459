"""Windows of steps recorded as Chrome traces that Perfetto and chrome://tracing open."""

from pathlib import Path
from typing import Any

import torch

from monograph.config.configurable import Configurable
from monograph.log import get_log
from monograph.train.config import ProfilerConfig

log = get_log("profiler")


class Profiler(Configurable):
    """Starts and stops torch's profiler at step borders; does nothing when no window was asked for."""

    Config = ProfilerConfig

    def __init__(self, config: ProfilerConfig, *, folder: Path, rank: int = 0) -> None:
        self.config = config
        self.folder = folder
        self.rank = rank
        self._running: Any = None
        self._first = 0
        self._last = 0

    def before_step(self, step: int) -> None:
        """Open a window when `step` is the first of one."""
        if self._running is None and self._starts_at(step):
            activities = [torch.profiler.ProfilerActivity.CPU]
            if torch.cuda.is_available():
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self._first = self._last = step
            self._running = torch.profiler.profile(activities=activities)
            self._running.start()

    def after_step(self, step: int) -> None:
        """Close the window after its last step and write the trace."""
        if self._running is not None:
            self._last = step
            if step - self._first + 1 >= self.config.steps:
                self._write()

    def close(self) -> None:
        """Write what a window cut short by the end of training has seen."""
        if self._running is not None:
            self._write()

    def _starts_at(self, step: int) -> bool:
        start, every = self.config.start, self.config.every
        if start == 0 or step < start:
            return False
        return step == start or (every > 0 and (step - start) % every == 0)

    def _write(self) -> None:
        running, self._running = self._running, None
        running.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"steps-{self._first}-{self._last}-rank-{self.rank}.json"
        running.export_chrome_trace(str(path))
        log.info("profile of steps %d to %d: %s", self._first, self._last, path)
