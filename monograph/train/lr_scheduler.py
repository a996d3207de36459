"""The learning rate as a pure function of the step: nothing to save, nothing that can drift on resume."""

import math

from monograph.config.configurable import Configurable
from monograph.train.lr_scheduler_config import LrSchedulerConfig, WarmupDecayConfig


class LrScheduler(Configurable):
    """The rate of every update: a peak times `factor`, the one method that a schedule of your own defines."""

    Config = LrSchedulerConfig

    def __init__(self, config: LrSchedulerConfig, *, peak: float, steps: int) -> None:
        self.config, self.peak, self.steps = config, peak, steps

    def lr(self, step: int) -> float:
        """The rate of update number `step`, counted from 1."""
        return self.peak * self.factor(step)

    def factor(self, step: int) -> float:
        """The rate as a fraction of its peak."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define factor(step)")


class WarmupDecay(LrScheduler):
    """Warmup, an optional constant stretch, and a decay to a floor; the last update is the first at the floor."""

    Config = WarmupDecayConfig

    def __init__(self, config: WarmupDecayConfig, *, peak: float, steps: int) -> None:
        super().__init__(config, peak=peak, steps=steps)
        self.shape = config.decay
        self.floor = config.min_factor
        self.warmup = config.count_warmup(steps)
        self.decay_steps = round((steps - self.warmup) * config.decay_fraction)
        self.decay_start = steps - self.decay_steps

    def factor(self, step: int) -> float:
        """The rate as a fraction of its peak."""
        if step <= self.warmup:
            return step / self.warmup
        if self.shape == "constant" or step <= self.decay_start:
            return 1.0
        done = min(1.0, (step - self.decay_start) / self.decay_steps)
        if self.shape == "linear":
            left = 1.0 - done
        elif self.shape == "cosine":
            left = 0.5 * (1.0 + math.cos(math.pi * done))
        else:
            left = 1.0 - math.sqrt(done)
        return self.floor + (1.0 - self.floor) * left
