"""What runs with FlexAttention and what does not: refused by name before anything is built. Loads without torch."""

from typing import Any

from monograph.errors import ConfigError
from monograph.models.attention_kernel_config import uses_flex


def has_compiler(config: Any, device: str) -> bool:
    """Whether passes compile parts of the step on this kind of device: those asked for, or FlexAttention."""
    return bool(config.passes.has_compiler) or (uses_flex(config.model) and device == "cuda")


def check_flex_limits(config: Any) -> None:
    """Refuse what a run with FlexAttention cannot do."""
    if not uses_flex(config.model):
        return
    degree, overlap = config.parallelism.context_parallel_degree, config.compile.expert_overlap
    if degree > 1:
        raise ConfigError(
            f"model.attention.kernel is flex and parallelism.context_parallel_degree is {degree}",
            why="a rank has parts of every sequence, and functions are written for the positions of whole ones",
            do="--parallelism.context_parallel_degree 1, or --model.attention.kernel auto",
        )
    if overlap.is_on and overlap.chunk_dim == "seq" and overlap.has_blocks:
        raise ConfigError(
            f"model.attention.kernel is flex and compile.expert_overlap cuts sequences of {overlap.modules!r}, which "
            "covers attention",
            why="tables of blocks are made for whole sequences",
            do="--compile.expert_overlap.modules 'layers.*.moe', or --compile.expert_overlap.chunk_dim batch",
        )
    if "compile_flex" in config.passes.off:
        raise ConfigError(
            "model.attention.kernel is flex and passes.off has compile_flex",
            why="uncompiled on a GPU it would compute and keep all scores",
            do="take compile_flex out of passes.off, or --model.attention.kernel reference",
        )
    if config.debug.device == "cpu":
        check_flex_device(config, "cpu")


def check_flex_device(config: Any, device: str) -> None:
    """Refuse what FlexAttention cannot do on this kind of device."""
    if not uses_flex(config.model) or device != "cpu":
        return
    if config.compile.mode == "layer" and config.compile.backend == "inductor":
        raise ConfigError(
            "model.attention.kernel is flex, compile.mode is layer and the device is a CPU",
            why="Inductor has no backward of FlexAttention for CPUs",
            do="--compile.mode graph or eager, or --compile.backend aot_eager",
        )
    if config.compile.mode == "graph" and "compile_whole" in config.passes.on:
        raise ConfigError(
            "model.attention.kernel is flex, passes.on has compile_whole and the device is a CPU",
            why="Inductor has no backward of FlexAttention for CPUs",
            do="--passes.mark_regions.regions blocks outside, which leaves FlexAttention out",
        )
