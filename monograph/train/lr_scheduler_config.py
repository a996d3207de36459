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


@dataclass(kw_only=True, slots=True)
class WarmupDecayConfig(LrSchedulerConfig):
    """Linear warmup, a constant stretch, then decay to a floor."""

    owner: ClassVar[str] = "monograph.train.lr_scheduler:WarmupDecay"
    warmup_steps: int = 200
    """Steps over which the rate rises linearly to its peak."""
    decay: Literal["constant", "linear", "cosine", "sqrt"] = "cosine"
    """Shape of the decay; constant keeps the peak."""
    decay_fraction: float = 1.0
    """Share of the steps after warmup that decay; what is left before them stays at the peak."""
    min_factor: float = 0.1
    """The floor, as a fraction of the peak."""

    def check(self) -> None:
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps is {self.warmup_steps}", why="it counts steps", do="write 0 for no warmup")
        for name in ("decay_fraction", "min_factor"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", why="it is a fraction between 0 and 1")
