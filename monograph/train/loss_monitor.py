"""Watch the loss and the gradient norm for divergence. Loads without torch."""

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
SHORT_WINDOW = 3
"""Last steps whose median counts in a run of less than a window."""
SHORT_FACTOR = 3.0
"""A run of less than a window has diverged where its loss ends so many times above the first (or above 1)."""
NORM_FACTOR = 100.0
"""A gradient norm has exploded where it stays so many times above the largest of the first steps."""
_ADVICE = "a lower optimizer.lr, more warm-up steps or a lower training.max_norm usually help"


class LossTrend:
    """Tell whether the loss is clearly above its start or has lost half of what it had gained, or the gradient norm
    stays far above that of the first steps."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=WINDOW)
        self._norms: deque[float] = deque(maxlen=WINDOW)
        self._begin: float | None = None
        self._first: float | None = None
        self._first_norm = 0.0
        self._best, self._best_step = math.inf, 0
        self._steps = 0
        self.reason = ""
        """What has diverged, with its numbers; empty while nothing has."""

    def add(self, step: int, loss: float, grad_norm: float) -> None:
        """Add one step."""
        self._steps += 1
        self._last.append(loss)
        self._norms.append(grad_norm)
        self._begin = loss if self._begin is None else self._begin
        if self._steps <= WINDOW:
            self._first_norm = max(self._first_norm, self._norms[-1])
        if len(self._last) < WINDOW:
            return
        self._first = self.now if self._first is None else self._first
        if self.now < self._best:
            self._best, self._best_step = self.now, step
        self.reason = self._find_reason()

    @property
    def now(self) -> float:
        """Mean loss of the last steps."""
        return sum(self._last) / len(self._last)

    def conclude(self) -> str:
        """Divergence at the end of a run and what usually helps, or an empty text; a short run is judged only here."""
        if self._steps < WINDOW and not self.reason:
            self.reason = self._judge_short_run()
        return self.reason

    def _find_reason(self) -> str:
        """What has diverged, with its numbers."""
        if self._is_worse():
            return (
                f"the loss has diverged: {self._begin:.4g} at first, {self._best:.4g} at best (around step "
                f"{self._best_step}), {self.now:.4g} over the last {WINDOW} steps; {_ADVICE}"
            )
        norm = statistics.median(self._norms)
        if self._steps > WINDOW and norm > NORM_FACTOR * self._first_norm > 0:
            return (
                f"the gradient norm has exploded: at most {self._first_norm:.4g} in the first {WINDOW} steps, "
                f"{norm:.4g} over the last {WINDOW}; {_ADVICE}"
            )
        return ""

    def _judge_short_run(self) -> str:
        """What has diverged in fewer steps than a window; one hard batch at the end is not enough."""
        if len(self._last) < SHORT_WINDOW:
            return ""
        losses, norms = list(self._last), list(self._norms)
        loss = statistics.median(losses[-SHORT_WINDOW:])
        if loss > SHORT_FACTOR * max(losses[0], 1.0):
            return f"the loss has diverged: {losses[0]:.4g} at first, {loss:.4g} over the last steps; {_ADVICE}"
        norm = statistics.median(norms[-SHORT_WINDOW:])
        if norm > NORM_FACTOR * norms[0] > 0:
            return f"the gradient norm has exploded: {norms[0]:.4g} at first, {norm:.4g} over the last steps; {_ADVICE}"
        return ""

    def _is_worse(self) -> bool:
        """Whether it is twice the very first loss, well above the first mean, or half of what was gained is lost."""
        assert self._begin is not None and self._first is not None
        mean = self.now
        deviation = math.sqrt(sum((loss - mean) * (loss - mean) for loss in self._last) / len(self._last))
        noise = max(LEAST_SHARE * abs(self._first), SPREADS * deviation)
        gained, lost = self._first - self._best, self.now - self._best
        return (
            self.now - self._begin > abs(self._begin)
            or self.now - self._first > noise
            or (gained > noise and lost > max(gained / 2, noise))
        )


class LossMonitor:
    """Warn once when a run diverges, and say when this is over."""

    def __init__(self) -> None:
        self._trend = LossTrend()

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one step's record."""
        before = self._trend.reason
        self._trend.add(record["step"], record["loss"], record.get("grad_norm", 0.0))
        if self._trend.reason and not before:
            log.warning("step %d: %s", record["step"], self._trend.reason)
        elif before and not self._trend.reason:
            log.info("step %d: the loss has come down again, to %.4f", record["step"], self._trend.now)

    def conclude(self) -> str:
        """Divergence at the end of a run and what usually helps, or an empty text; a short run is judged only here."""
        before, reason = self._trend.reason, self._trend.conclude()
        if reason and not before:
            log.warning("%s", reason)
        return reason
