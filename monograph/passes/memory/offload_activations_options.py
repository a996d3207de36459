"""What waits for backward on the host, as options. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.passes.options import PassOptions


@dataclass(kw_only=True, slots=True)
class OffloadActivationsConfig(PassOptions):
    """What waits for backward in the host's memory."""

    owner: ClassVar[str] = "monograph.passes.memory.offload_activations:OffloadActivations"
    switch: ClassVar[str] = "budget_gib"
    example: ClassVar[str] = "8"
    budget_gib: float = 0.0
    """The most that moves to the host, on one rank; 0 keeps everything on the device."""
    prefetch_blocks: int = 1
    """Bring a value back this many blocks before backward needs it."""
    min_bytes: int = 4096
    """Smaller values are not worth the trip."""

    def check(self) -> None:
        check_range(self, "budget_gib", 1e-9, 1e9, zero="to keep everything on the device")
        for name, least in (("prefetch_blocks", 0), ("min_bytes", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}", why=f"it must be at least {least}")
