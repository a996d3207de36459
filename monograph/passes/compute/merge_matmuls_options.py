"""Which matmuls are merged, as options. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.errors import ConfigError
from monograph.passes.options import PassOptions


@dataclass(kw_only=True, slots=True)
class MergeMatmulsConfig(PassOptions):
    """Which matmuls become one."""

    owner: ClassVar[str] = "monograph.passes.compute.merge_matmuls:MergeMatmuls"
    max_columns: int = 1 << 16
    """Merge only where one of the matmuls has no more columns than this."""

    def check(self) -> None:
        if self.max_columns < 1:
            raise ConfigError(
                f"max_columns is {self.max_columns}",
                why="it must be at least 1",
                do="--passes.merge_matmuls.max_columns 65536",
            )
