"""What runs with a pipeline and what does not yet: refused by name before anything is built. Loads without torch."""

from typing import Any

from monograph.errors import ConfigError
from monograph.parallel.pipeline.builtin import PLAIN

_PASSES = ("compile_whole", "mark_regions")
"""Passes that would put forward and backward of a stage into one compiled part, or were not tried on stages."""


def check_pipeline_limits(config: Any) -> None:
    """Refuse what a run with pipeline_parallel_degree above 1 cannot do."""
    degree = config.parallelism.pipeline_parallel_degree
    if degree == 1:
        return
    if config.parallelism.fsdp == "fsdp2":
        raise _refuse(degree, "parallelism.fsdp is fsdp2", "--parallelism.fsdp auto")
    name = config.parallelism.pipeline_schedule
    if config.compile.mode != "graph" and name not in PLAIN:
        raise ConfigError(
            f"parallelism.pipeline_schedule is {name} and compile.mode is {config.compile.mode}",
            why="only a captured backward can be split, so eager and layer mode run the plain schedules",
            do=f"--compile.mode graph, or --parallelism.pipeline_schedule {', '.join(PLAIN)}",
        )
    asked = [name for name in _PASSES if name in config.passes.on or config.passes.is_asked(name)]
    if asked:
        raise _refuse(degree, f"the pass {asked[0]} is asked for", f"leave {asked[0]} out")


def refuse_pipeline(config: Any, command: str, *, why: str) -> None:
    """Refuse a pipeline where a command has no answer for it."""
    degree = config.parallelism.pipeline_parallel_degree
    if degree > 1:
        raise ConfigError(
            f"parallelism.pipeline_parallel_degree is {degree} and monograph {command} is asked for",
            why=why,
            do="--parallelism.pipeline_parallel_degree 1",
        )


def _refuse(degree: int, what: str, do: str) -> ConfigError:
    return ConfigError(
        f"parallelism.pipeline_parallel_degree is {degree} and {what}",
        why="a pipeline does not support it yet",
        do=f"{do}; or --parallelism.pipeline_parallel_degree 1",
    )
