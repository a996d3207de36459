"""Settings of learning rate schedules. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class LrSchedulerConfig(Configurable.Config):
    """What every schedule is; your own is one flag away: --lr_scheduler package.module:Class."""

    owner: ClassVar[str] = "monograph.train.lr_scheduler:LrScheduler"
    is_base: ClassVar[bool] = True
    total_steps: int = 0
    """Steps that the schedule spans, after which the rate stays as it is; 0 takes training.steps."""
    on_extend: Literal["error", "hold", "redecay"] = "error"
    """For a run that continues beyond the schedule of its checkpoint: stay at its last rate, or rise to the peak and
    decay once more; error asks for one of the two."""

    def check_length(self, steps: int, what: str) -> None:
        """Refuse a schedule that does not fit into so many steps; `what` names them."""


@dataclass(kw_only=True, slots=True)
class WarmupDecayConfig(LrSchedulerConfig):
    """Linear warmup, a constant stretch, then decay to a floor."""

    owner: ClassVar[str] = "monograph.train.lr_scheduler:WarmupDecay"
    warmup_steps: int = -1
    """Steps over which the rate rises linearly to its peak; -1 takes a tenth of the schedule."""
    decay: Literal["constant", "linear", "cosine", "sqrt"] = "cosine"
    """Shape of the decay; constant keeps the peak."""
    decay_fraction: float = 1.0
    """Share of the steps after warmup that decay; what is left before them stays at the peak."""
    min_factor: float = 0.1
    """The floor, as a fraction of the peak."""

    def check(self) -> None:
        if self.total_steps < 0:
            raise ConfigError(f"total_steps is {self.total_steps}", why="it counts steps", do="write 0 or more")
        if self.warmup_steps < -1:
            raise ConfigError(
                f"warmup_steps is {self.warmup_steps}",
                why="it counts steps",
                do="write 0 for no warmup, or -1 for a tenth of the steps",
            )
        for name in ("decay_fraction", "min_factor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it is a fraction between 0 and 1")

    def check_length(self, steps: int, what: str) -> None:
        if self.warmup_steps > steps:
            raise ConfigError(
                f"lr_scheduler.warmup_steps is {self.warmup_steps} and {what} is {steps}",
                why="the rate would never reach its peak",
                do=f"--lr_scheduler.warmup_steps {max(1, steps // 10)}, or -1 for a tenth of the steps",
            )

    def count_warmup(self, steps: int) -> int:
        """The steps of the warmup of a schedule of so many steps."""
        return round(steps / 10) if self.warmup_steps == -1 else self.warmup_steps
