"""What float8 matmuls need: refused before anything is built. Loads without torch."""

from typing import Any

from monograph.errors import ConfigError


def check_float8_limits(config: Any) -> None:
    """Refuse float8 in a run that would have no matmul to quantize."""
    if config.compile.mode != "graph" or not config.passes.runs("quantize_matmuls", config.compile.numerics):
        return
    if config.training.compute_dtype != "bfloat16":
        is_class = config.compile.numerics == "float8"
        asked = "compile.numerics is float8" if is_class else "passes.on has quantize_matmuls"
        instead = "--compile.numerics fast" if is_class else "leave quantize_matmuls out of passes.on"
        raise ConfigError(
            f"{asked} and training.compute_dtype is {config.training.compute_dtype}",
            why="float8 takes the place of bfloat16 matmuls, and there would be none",
            do=f"--training.compute_dtype bfloat16, or {instead}",
        )
