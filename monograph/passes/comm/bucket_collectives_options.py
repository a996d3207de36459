"""How collectives are merged, as options. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.errors import ConfigError
from monograph.passes.options import PassOptions


@dataclass(kw_only=True, slots=True)
class BucketCollectivesConfig(PassOptions):
    """How collectives are joined."""

    owner: ClassVar[str] = "monograph.passes.comm.bucket_collectives:BucketCollectives"
    max_bytes: int = 256 << 20
    """Stop filling a bucket at this size."""

    def check(self) -> None:
        if self.max_bytes < 1:
            raise ConfigError(
                f"max_bytes is {self.max_bytes}",
                why="it must be at least 1",
                do="--passes.bucket_collectives.max_bytes 268435456",
            )
