"""Watches the experts' load: a collapsed router wastes a run, and the loss does not show it."""

from collections.abc import Mapping
from typing import Any

from monograph.log import get_log
from monograph.models.config import MoeConfig

log = get_log("experts")
SHARE_OF_WORST = 0.75
"""The limit is never above this share of the worst case, one expert with every token."""


class LoadMonitor:
    """Warns once when the busiest expert of a layer stays above the limit, and says when all are below it again."""

    def __init__(self, moe: MoeConfig | None, *, limit: float, patience: int) -> None:
        self.is_on = moe is not None and limit > 0
        if moe is None:
            return
        self.worst = moe.n_experts / moe.router.top_k
        self.limit, self.patience = min(limit, SHARE_OF_WORST * self.worst), patience
        self.advice = advise(moe)
        self._above: dict[int, int] = {}
        self._has_warned = False

    def add(self, record: Mapping[str, Any]) -> None:
        """Take one step's record."""
        if not self.is_on or "expert_load" not in record:
            return
        loads = record["expert_load"]["max_over_mean"]
        self._above = {layer: self._above.get(layer, 0) + 1 for layer, load in enumerate(loads) if load > self.limit}
        stuck = [layer for layer, steps in self._above.items() if steps >= self.patience]
        if stuck and not self._has_warned:
            self._has_warned = True
            log.warning(
                "step %d: uneven expert load: in %d of %d MoE layers (%s) the busiest expert got more than %.2f times "
                "the mean load for %d steps, now up to %.2f (%.2f means that one expert gets every token); %s",
                record["step"],
                len(stuck),
                len(loads),
                ", ".join(map(str, stuck[:8])) + (", ..." if len(stuck) > 8 else ""),
                self.limit,
                self.patience,
                max(loads),
                self.worst,
                self.advice,
            )
        elif self._has_warned and not self._above:
            self._has_warned = False
            log.info("step %d: expert load is below %.2f times the mean in every layer", record["step"], self.limit)


def advise(moe: MoeConfig) -> str:
    """What to change, from what the run does already."""
    if moe.router.force_balance:
        return "router.force_balance assigns tokens evenly, so this is a bug"
    if moe.balance.needs_counts:
        return f"raise --model.moe.balance.coefficient (now {moe.balance.coefficient:g})"
    if moe.router.expert_bias:
        return f"raise --model.moe.router.bias_update_rate (now {moe.router.bias_update_rate:g})"
    return "nothing balances them: --model.moe.balance.coefficient 0.001"
