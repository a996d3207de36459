"""Steps at which the loss of a run has diverged or is not finite, found while its records are read. Loads without
torch."""

import math
from collections.abc import Sequence
from typing import Any

from monograph.train.loss_monitor import LossTrend
from monograph.train.records import find_number

MAX_SPANS = 100
"""Of one kind; a loss that alternates for longer is shown up to there."""


class DivergenceReader:
    """Follows the records of one run; each call looks only at those that were added."""

    def __init__(self) -> None:
        self._count = 0
        self._restart([])

    def read(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Spans of steps: `kind` is `diverged` or `not finite`, `first` and `last` are steps, `text` says how far."""
        if records is not self._records or len(records) < self._count:
            self._restart(records)
        for record in records[self._count :]:
            self._add(record)
        self._count = len(records)
        return self._spans

    def _restart(self, records: list[dict[str, Any]]) -> None:
        self._records, self._count = records, 0
        self._trend = LossTrend()
        self._spans: list[dict[str, Any]] = []
        self._open: dict[str, dict[str, Any] | None] = {"diverged": None, "not finite": None}

    def _add(self, record: dict[str, Any]) -> None:
        loss = record.get("loss")
        if isinstance(loss, float) and not math.isfinite(loss):
            self._mark("not finite", record["step"], is_bad=True, text="the loss is not finite")
            return
        value = find_number(loss)
        if value is None:
            return  # a validation, or a loss that is no number
        self._trend.add(record["step"], value, find_number(record.get("grad_norm")) or 0.0)
        self._mark("not finite", record["step"], is_bad=False)
        self._mark("diverged", record["step"], is_bad=bool(self._trend.reason), text=self._trend.reason)

    def _mark(self, kind: str, step: int, *, is_bad: bool, text: str = "") -> None:
        """Open a span, lengthen the open one, or close it."""
        span = self._open[kind]
        if not is_bad:
            self._open[kind] = None
        elif span is not None:
            span |= {"last": step, "text": text}
        elif sum(each["kind"] == kind for each in self._spans) < MAX_SPANS:
            self._open[kind] = span = {"kind": kind, "first": step, "last": step, "text": text}
            self._spans.append(span)


def is_diverged_now(spans: Sequence[dict[str, Any]], last_step: int) -> bool:
    """Whether the run ends, so far, with a loss that has diverged or is not finite."""
    return any(span["last"] >= last_step for span in spans)
