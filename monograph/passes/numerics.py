"""What a captured step promises about its numerics, from the passes that ran."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from monograph.passes.order import PassEntry
from monograph.passes.runner import load_pass


@dataclass(frozen=True)
class NumericsPromise:
    """Whether a run gives eager's bits; computed here and nowhere else, so that every tool says the same."""

    causes: tuple[str, ...] = ()
    """What rounds differently from eager mode, by name; nothing when every bit is kept."""

    @property
    def is_bitwise(self) -> bool:
        """Whether losses, gradients and weights are those of eager mode bit for bit."""
        return not self.causes

    def __str__(self) -> str:
        return f"within rounding of eager: {', '.join(self.causes)}" if self.causes else "bitwise identical to eager"


def find_rounding_passes(ran: Iterable[str], order: Mapping[str, PassEntry]) -> list[str]:
    """Of the passes that ran, those that do not keep every bit; a pass outside of the order promises nothing."""
    return [name for name in ran if name not in order or not load_pass(order[name]).bitwise]
