"""What a person sees while training: lines that stay, and on a terminal a live bar below them."""

import sys
from collections.abc import Mapping
from typing import Any, Literal

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from monograph.log import get_log
from monograph.system.console import make_console

log = get_log("progress")
Style = Literal["auto", "bar", "lines", "off"]
_WIDE = 130
"""Columns of a terminal from which the bar has room for every number; below, it shows loss and speed alone."""


class ProgressView:
    """Shows steps as they finish: a line every `interval` steps, which scrolls away above the bar of a terminal."""

    def __init__(self, style: Style, *, steps: int, done: int, interval: int, console: Console | None = None) -> None:
        if style == "auto":
            style = "bar" if sys.stderr.isatty() else "lines"
        self.style = style
        self.steps = steps
        self.interval = interval
        self._first = done + 1
        self._seconds: float | None = None
        self._is_wide = True
        self._bar: Progress | None = None
        if style == "bar":
            console = console or make_console(stderr=True, soft_wrap=False)
            self._is_wide = console.width >= _WIDE
            self._bar = Progress(
                TextColumn("[bold]training"),
                BarColumn(bar_width=40 if self._is_wide else 10),
                MofNCompleteColumn(),
                TextColumn("ETA {task.fields[eta]}"),
                TextColumn("{task.fields[numbers]}"),
                console=console,
            )
            self._task = self._bar.add_task("training", total=steps, completed=done, numbers="", eta="-:--:--")
            self._bar.start()

    def step(self, record: Mapping[str, Any]) -> None:
        """One finished step."""
        step = record["step"]
        numbers, eta = _numbers(record, brief=not self._is_wide), _clock(self._seconds_left(record))
        if self._bar is not None:
            self._bar.update(self._task, completed=step, numbers=numbers, eta=eta)
        is_due = step == self._first or step % self.interval == 0 or step == self.steps
        if self.style != "off" and is_due:
            text = _numbers(record, brief=False)
            log.info("step %*d/%d  %s  ETA %s", len(str(self.steps)), step, self.steps, text, eta)

    def _seconds_left(self, record: Mapping[str, Any]) -> float:
        """From a running mean that forgets the slow first step within a few others; steps may take minutes each."""
        seconds = record["ms"] / 1000
        self._seconds = seconds if self._seconds is None else 0.8 * self._seconds + 0.2 * seconds
        return self._seconds * (self.steps - record["step"])

    def close(self) -> None:
        """Take the bar down and leave its last state on the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _numbers(record: Mapping[str, Any], *, brief: bool) -> str:
    loss, speed = f"loss {record['loss']:.4f}", f"{record['tokens_per_second']:,.0f} tokens/s"
    if brief:
        return f"{loss}  {speed}"
    speed = f"{record.get('window_tokens_per_second', record['tokens_per_second']):,.0f} tokens/s"
    parts = [loss, f"grad norm {record['grad_norm']:.3f}", *_describe_lr(record), speed]
    mfu = record.get("window_mfu", record.get("mfu"))
    if mfu is not None:
        parts.append(f"MFU {100 * mfu:.1f} %")
    if record.get("peak_memory_gib"):
        parts.append(f"{record['peak_memory_gib']:.2f} GiB")
    return "  ".join(parts)


def _describe_lr(record: Mapping[str, Any]) -> list[str]:
    return [f"lr {record['lr']:.2e}"] if "lr" in record else []


def _clock(seconds: float) -> str:
    whole = int(seconds)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}"
