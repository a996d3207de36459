"""Which parts of the step are compiled, as options. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.config.annotations import Names
from monograph.passes.options import PassOptions


@dataclass(kw_only=True, slots=True)
class MarkRegionsConfig(PassOptions):
    """Which parts of the step are compiled."""

    owner: ClassVar[str] = "monograph.passes.compile.mark_regions:MarkRegions"
    switch: ClassVar[str] = "regions"
    example: ClassVar[str] = "blocks outside"
    regions: Names = ()
    """`blocks` for every block as a whole, `outside` for all that is in no block, names given with `annotate`."""
