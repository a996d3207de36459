"""How fast a run is as a whole and over its last steps, from the records of single steps. Loads without torch."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SpeedReport:
    """The speed of a run."""

    tokens_per_second: float = 0.0
    """Of all steps but the first, which warms things up; with it when there is no other."""
    mfu: float | None = None
    """Of the same steps; None where the device's peak is not known."""
    overall_tokens_per_second: float = 0.0
    """Of all steps over all time since the first began: waiting for data, validation and checkpoints included."""
    update_share: float = 0.0
    """The part of the steps' time that went into updates."""

    def describe(self) -> str:
        """One line."""
        mfu = f", MFU {100 * self.mfu:.1f} %" if self.mfu is not None else ""
        return (
            f"{self.tokens_per_second:,.0f} tokens/s{mfu}; {self.overall_tokens_per_second:,.0f} tokens/s with "
            "validation, checkpoints and data"
        )


class Speed:
    """The run as a whole: its first and last record, mean speeds, and those of the last steps.

    It keeps the records of one window, however long the run.
    """

    def __init__(self, window: int = 1) -> None:
        self.first: Mapping[str, Any] = {}
        self.last: Mapping[str, Any] = {}
        self._window: deque[Mapping[str, Any]] = deque(maxlen=window)
        self._steps = 0
        self._seconds = 0.0
        self._update_seconds = 0.0

    def add(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Take one step's record; what the steps of the last window have in common with it, as entries of it."""
        if self.first:
            self._steps += 1
            self._seconds += record["ms"] / 1000
            self._update_seconds += record.get("update_ms", 0.0) / 1000
        self.first = self.first or record
        self.last = record
        self._window.append(record)
        seconds = sum(each["ms"] for each in self._window) / 1000
        tokens = sum(each["ms"] * each["tokens_per_second"] for each in self._window) / 1000
        return {"window_tokens_per_second": tokens / seconds, "window_mfu": find_mean_mfu(record, tokens / seconds)}

    def report(self, tokens_per_step: int, *, seconds: float) -> SpeedReport:
        """The speed so far, `seconds` after the first step began."""
        rate = self.first.get("tokens_per_second", 0.0)
        if self._steps:
            rate = tokens_per_step * self._steps / self._seconds
        steps = self._steps + bool(self.first)
        return SpeedReport(
            tokens_per_second=rate,
            mfu=find_mean_mfu(self.last, rate),
            overall_tokens_per_second=tokens_per_step * steps / seconds if seconds > 0 else 0.0,
            update_share=self._update_seconds / self._seconds if self._seconds else 0.0,
        )


def find_mean_mfu(record: Mapping[str, Any], tokens_per_second: float) -> float | None:
    """The MFU at another speed than that of the record; None where it is not known or more than the device can do."""
    if record.get("mfu") is None:
        return None
    value = float(record["mfu"] * tokens_per_second / record["tokens_per_second"])
    return value if value <= 1 else None
