"""Which matmuls are computed in float8, and how, as options. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from monograph.config.annotations import Names
from monograph.errors import ConfigError
from monograph.passes.options import PassOptions

Recipe = Literal["tensorwise", "rowwise", "rowwise_hp_dw"]


@dataclass(kw_only=True, slots=True)
class QuantizeMatmulsConfig(PassOptions):
    """Which matmuls are computed in float8, and with which scales."""

    owner: ClassVar[str] = "monograph.passes.compute.quantize_matmuls:QuantizeMatmuls"
    recipe: Recipe = "rowwise"
    """tensorwise: one scale a tensor, gradients in e5m2; rowwise: one scale for every row and column that is
    contracted; rowwise_hp_dw: rowwise, with weight gradients in bfloat16. Experts always take rowwise_hp_dw."""
    only: Names = ()
    """Modules whose matmuls may be quantized, as path patterns such as `layers.*.feed_forward*`; empty: all."""
    skip: Names = ()
    """Modules whose matmuls stay in bfloat16, as path patterns."""
    by_cost: bool = True
    """Leave matmuls in bfloat16 where casts would take longer than float8 saves, by the rates of the machine; on
    machines without faster float8 matmuls, such as CPUs, nothing is left out by cost."""

    def check(self) -> None:
        for name in ("only", "skip"):
            if any(not pattern.strip() for pattern in getattr(self, name)):
                raise ConfigError(
                    f"{name} has an empty pattern",
                    why="it would match nothing",
                    do=f"--passes.quantize_matmuls.{name} 'layers.*.attention*'",
                )
