"""Watches the loss: a run that unlearns ends like one that learns, unless somebody looks. Loads without torch."""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from monograph.log import get_log

log = get_log("loss")
WINDOW = 20
"""Steps whose mean is compared, so that neither one hard batch nor a spike that passes counts."""
SPREADS = 2
"""Standard deviations of one step's loss: means of a window that are nearer to each other are not told apart."""
LEAST_SHARE = 0.1
"""Of the first loss: changes that are smaller are taken for noise."""


class LossMonitor:
    """Says once when the loss is clearly above where it began, or has lost half of what it had gained; and when it is
    not any more."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._begin: float | None = None
        self._first: float | None = None
        self._best, self._best_step = math.inf, 0
        self._is_bad = False

    def add(self, record: Mapping[str, Any]) -> None:
        """Take one step's record."""
        self._last.append(record["loss"])
        self._begin = record["loss"] if self._begin is None else self._begin
        if len(self._last) < WINDOW:
            return
        self._first = self.now if self._first is None else self._first
        if self.now < self._best:
            self._best, self._best_step = self.now, record["step"]
        was_bad, self._is_bad = self._is_bad, self._is_worse()
        if self._is_bad and not was_bad:
            log.warning("step %d: %s", record["step"], self.describe())
        elif was_bad and not self._is_bad:
            log.info("step %d: the loss has come down again, to %.4f", record["step"], self.now)

    @property
    def now(self) -> float:
        """The mean of the last steps."""
        return sum(self._last) / len(self._last)

    def describe(self) -> str:
        """What is wrong with the loss, and what usually helps; empty where nothing is."""
        if not self._is_bad:
            return ""
        return (
            f"the loss has diverged: {self._begin:.4g} at first, {self._best:.4g} at best (around step "
            f"{self._best_step}), {self.now:.4g} over the last {WINDOW} steps; a lower optimizer.lr, more warm-up "
            "steps or a lower training.max_norm usually help"
        )

    def _is_worse(self) -> bool:
        """Whether it is twice the very first loss, well above the first mean, or half of what was gained is lost."""
        assert self._begin is not None and self._first is not None
        noise = max(LEAST_SHARE * abs(self._first), SPREADS * statistics.pstdev(self._last))
        gained, lost = self._first - self._best, self.now - self._best
        return (
            self.now - self._begin > abs(self._begin)
            or self.now - self._first > noise
            or (gained > noise and lost > max(gained / 2, noise))
        )
