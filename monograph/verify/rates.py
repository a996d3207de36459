"""The learning rates of a run against those that its settings describe, written down once more."""

import math

from monograph.train.config import TrainerConfig
from monograph.train.lr_plan import plan_lr
from monograph.train.lr_scheduler_config import WarmupDecayConfig
from monograph.verify.compare import relative

RATE = "learning rate"
"""Among the numbers of a verdict."""


def compare_rates(config: TrainerConfig) -> dict[str, float]:
    """The largest relative difference over the corners of the schedule and what lies between them; nothing for a
    schedule of a user's own, which is a formula of its own already."""
    scheduler = config.lr_scheduler
    if type(scheduler) is not WarmupDecayConfig:
        return {}
    peak, steps = config.optimizer.lr, config.training.steps
    total = scheduler.total_steps or steps
    plan = plan_lr(scheduler, peak=peak, steps=steps).plan
    warmup, begin = find_corners(scheduler, total)
    near = {1, 2, warmup, warmup + 1, begin, begin + 1, (begin + total) // 2, total - 1, total, steps}
    corners = [step for step in near if 0 < step <= steps]
    return {RATE: max(relative(plan.lr(step), peak * find_factor(scheduler, step, total)) for step in corners)}


def find_corners(config: WarmupDecayConfig, total: int) -> tuple[int, int]:
    """The last steps of the warmup, and of the peak."""
    warmup = round(total / 10) if config.warmup_steps == -1 else config.warmup_steps
    return warmup, total - round((total - warmup) * config.decay_fraction)


def find_factor(config: WarmupDecayConfig, step: int, total: int) -> float:
    """The rate of an update as a fraction of the peak: up linearly, constant, down in the shape of the decay."""
    warmup, begin = find_corners(config, total)
    if step < warmup:
        return step / warmup
    if config.decay == "constant" or step <= begin or begin == total:
        return 1.0
    done = min(1.0, (step - begin) / (total - begin))
    left = {"linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2, "sqrt": 1 - math.sqrt(done)}
    return config.min_factor + (1 - config.min_factor) * left[config.decay]
