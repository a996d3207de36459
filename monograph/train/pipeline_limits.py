"""What runs with a pipeline and what does not yet: refused by name before anything is built. Loads without torch."""

from typing import Any

from monograph.errors import ConfigError

_PASSES = ("compile_whole", "mark_regions")
"""Passes that would put forward and backward of a stage into one compiled part, or were not tried on stages."""


def check_pipeline_limits(config: Any) -> None:
    """Refuse what a run with pipeline_parallel_degree above 1 cannot do."""
    degree = config.parallelism.pipeline_parallel_degree
    if degree == 1:
        return
    if config.compile.mode != "graph":
        raise _refuse(degree, f"compile.mode is {config.compile.mode}", "--compile.mode graph")
    if config.compile.artifact:
        raise _refuse(degree, "compile.artifact is given", "leave --compile.artifact out")
    if config.compile.cuda_graph == "require":
        raise _refuse(degree, "compile.cuda_graph is require", "--compile.cuda_graph auto")
    if config.compile.expert_overlap.strategy != "off":
        strategy = config.compile.expert_overlap.strategy
        raise _refuse(degree, f"compile.expert_overlap.strategy is {strategy}", "--compile.expert_overlap.strategy off")
    asked = [name for name in _PASSES if name in config.passes.on or config.passes.is_asked(name)]
    if asked:
        raise _refuse(degree, f"the pass {asked[0]} is asked for", f"leave {asked[0]} out")


def refuse_pipeline(config: Any, command: str) -> None:
    """Refuse a pipeline where a command has no answer for it yet."""
    degree = config.parallelism.pipeline_parallel_degree
    if degree > 1:
        raise _refuse(degree, f"monograph {command} is asked for", "--parallelism.pipeline_parallel_degree 1")


def _refuse(degree: int, what: str, do: str) -> ConfigError:
    return ConfigError(
        f"parallelism.pipeline_parallel_degree is {degree} and {what}",
        why="a pipeline does not support it yet",
        do=f"{do}; or --parallelism.pipeline_parallel_degree 1",
    )
