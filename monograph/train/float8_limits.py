"""What float8 matmuls need: refused before anything is built. Loads without torch."""

from collections.abc import Iterable
from typing import Any

from monograph.errors import ConfigError
from monograph.log import get_log
from monograph.machine.choose import AUTO, find_machine

QUANTIZE = "quantize_matmuls"
"""The pass."""
_BY_COST = "slower with its casts"
"""What its note says of matmuls that it left out by their cost."""

log = get_log("float8")


def check_float8_limits(config: Any) -> None:
    """Refuse float8 in a run that would have no matmul to quantize."""
    if config.compile.mode != "graph" or not config.passes.runs(QUANTIZE, config.compile.numerics):
        return
    if config.training.compute_dtype != "bfloat16":
        asked, instead = _describe_request(config)
        raise ConfigError(
            f"{asked} and training.compute_dtype is {config.training.compute_dtype}",
            why="float8 takes the place of bfloat16 matmuls, and there would be none",
            do=f"--training.compute_dtype bfloat16, or {instead}",
        )
    if config.machine != AUTO:
        check_machine(config)


def check_machine(config: Any) -> None:
    """Refuse float8 for a GPU that cannot: its step would be planned by times that it does not have."""
    machine = find_machine(config.machine)
    if machine.device == "cuda" and not machine.has_float8:
        asked, instead = _describe_request(config)
        raise ConfigError(
            f"{asked} and machine is {config.machine}",
            why=f"{machine.name} has no matmuls in float8; they begin with compute capability 8.9 (Ada, Hopper)",
            do=f"another machine, or {instead}",
        )


def check_quantized(config: Any, records: Iterable[Any]) -> None:
    """Refuse a step in which sizes or options leave no matmul in float8; warn where float8 would only be slower."""
    for record in records:
        if record.name != QUANTIZE or record.status != "ran" or record.added:
            continue
        if _BY_COST in record.note:
            log.warning("no matmul is computed in float8: %s", record.note)
            continue
        asked, instead = _describe_request(config)
        raise ConfigError(
            f"{asked}, and no matmul of the step can be computed in float8",
            why=record.note,
            do=f"{instead}; or sizes in multiples of 16, and module patterns in passes.{QUANTIZE} that match some",
        )


def _describe_request(config: Any) -> tuple[str, str]:
    """How float8 was asked for, and what to write without it."""
    if config.compile.numerics == "float8":
        return "compile.numerics is float8", "--compile.numerics fast"
    return f"passes.on has {QUANTIZE}", f"leave {QUANTIZE} out of passes.on"
