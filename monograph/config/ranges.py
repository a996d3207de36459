"""Ranges of numeric fields: a value that would end in a traceback, an overflow or NaN is refused by name."""

from typing import Any

from monograph.errors import ConfigError

FP32_TINY = 2.0**-126
"""The smallest normal float32: below it a number loses bits, or becomes 0 on devices that flush denormals."""
FP32_MAX = 2.0**128 - 2.0**104
"""The largest float32: above it a number becomes infinite."""


def check_range(config: Any, name: str, low: float, high: float, *, zero: str = "", why: str = "") -> None:
    """Refuse a field outside [low, high]; `zero` says what 0 means where it is allowed as well."""
    value = getattr(config, name)
    if low <= value <= high or (zero and value == 0):
        return
    allowed = f"it must be between {low:.3g} and {high:.3g}" + (f", or 0 {zero}" if zero else "")
    raise ConfigError(f"{name} is {value}", why=f"{allowed}: {why}" if why else allowed)
