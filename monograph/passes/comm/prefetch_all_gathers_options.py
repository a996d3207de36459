"""How early collectives start, as options. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.errors import ConfigError
from monograph.passes.options import PassOptions


@dataclass(kw_only=True, slots=True)
class PrefetchAllGathersConfig(PassOptions):
    """How early collectives start and how late they are waited for."""

    owner: ClassVar[str] = "monograph.passes.comm.prefetch_all_gathers:PrefetchAllGathers"
    ahead: int = 1
    """Start a block's gather this many blocks before it runs."""

    def check(self) -> None:
        if self.ahead < 1:
            raise ConfigError(
                f"ahead is {self.ahead}", why="it must be at least 1", do="--passes.off prefetch_all_gathers for none"
            )
