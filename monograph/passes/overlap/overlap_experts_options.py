"""The memory that hiding all_to_alls may cost. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.errors import ConfigError
from monograph.passes.options import PassOptions


@dataclass(kw_only=True, slots=True)
class OverlapExpertsConfig(PassOptions):
    """The memory that hiding all_to_alls may cost."""

    owner: ClassVar[str] = "monograph.passes.overlap.overlap_experts:OverlapExperts"
    max_extra_bytes: int = 256 << 20
    """Work that fills a gap may keep this much alive longer than it would be."""

    def check(self) -> None:
        if self.max_extra_bytes < 0:
            raise ConfigError(f"max_extra_bytes is {self.max_extra_bytes}", why="it must be at least 0")
