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
    low_precision: tuple[str, ...] = ()
    """What computes in a narrower dtype than the run's own: the bits of an eager step that quantizes the same way."""

    @property
    def is_bitwise(self) -> bool:
        """Whether losses, gradients and weights are those of eager mode bit for bit."""
        return not self.causes and not self.low_precision

    def __str__(self) -> str:
        rounding = f"within rounding of eager: {', '.join(self.causes)}" if self.causes else ""
        if not self.low_precision:
            return rounding or "bitwise identical to eager"
        return "; ".join(part for part in (f"low precision: {', '.join(self.low_precision)}", rounding) if part)


def find_rounding_passes(ran: Iterable[str], order: Mapping[str, PassEntry]) -> list[str]:
    """Of the passes that ran, those that do not keep every bit; a pass outside of the order promises nothing."""
    return [name for name in ran if name not in order or not load_pass(order[name]).bitwise]


def find_low_precision_passes(ran: Iterable[str], order: Mapping[str, PassEntry]) -> list[str]:
    """Of the passes that ran, those that compute in a narrower dtype."""
    return [name for name in ran if name in order and load_pass(order[name]).is_low_precision]
