"""The optimizer of a step: its parameters, which of them decay, the copies it writes, what random bits depend on."""

from typing import Any

from monograph.train.optimizer import Optimizer
from monograph.train.optimizer_config import OptimizerConfig
from monograph.train.step import Step


def build_optimizer(config: OptimizerConfig, step: Step) -> Optimizer:
    """From a planned config; one that draws random bits is told where the shards lie in the whole parameters."""
    parameters = step.trained
    random: dict[str, Any] = {}
    if config.draws_random:
        random = {"seed": step.seed, "row_starts": {name: step.find_row_starts(name) for name in parameters}}
    optimizer: Optimizer = config.build(
        parameters=parameters, decayed=step.decayed, weight_cache=step.weight_cache, **random
    )
    return optimizer
