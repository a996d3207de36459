"""The machine that all_to_alls are hidden for, as options. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.passes.options import PassOptions


@dataclass(kw_only=True, slots=True)
class OverlapExpertsConfig(PassOptions):
    """The machine that exchanges are hidden for, and the memory this may cost."""

    owner: ClassVar[str] = "monograph.passes.overlap.overlap_experts:OverlapExperts"
    max_extra_bytes: int = 256 << 20
    """Work that fills a gap may keep this much alive longer than it would be."""
    tflops: float = 790.0
    """What the device computes, in TFLOP/s."""
    memory_tb_per_second: float = 4.3
    """What its memory moves."""
    link_gb_per_second: float = 50.0
    """What one rank sends."""
    link_latency_us: float = 10.0
    """How long a collective takes to start."""

    def check(self) -> None:
        for name in ("tflops", "memory_tb_per_second", "link_gb_per_second"):
            check_range(self, name, 1e-6, 1e9, why="costs are divided by it")
        check_range(self, "link_latency_us", 0, 1e9)
        if self.max_extra_bytes < 0:
            raise ConfigError(f"max_extra_bytes is {self.max_extra_bytes}", why="it must be at least 0")
