"""What forward saves for backward, as options. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.passes.options import Numerics, PassOptions

SavePolicy = Literal["auto", "all", "default", "min_cut", "full", "budget"]


@dataclass(kw_only=True, slots=True)
class ChooseSavedConfig(PassOptions):
    """What forward keeps for backward."""

    owner: ClassVar[str] = "monograph.passes.memory.choose_saved:ChooseSaved"
    policy: SavePolicy = "auto"
    """all; default: matmuls, attention, top-k, exchanges; min_cut: fewest bytes; full: block inputs; budget: fits;
    auto: min_cut with compile.numerics fast, else default."""
    save: tuple[str, ...] = ()
    """With full: also keep these, each as PATH::OP, e.g. `layers.*.moe.router.gate::mm`."""
    budget_gib: float = 0.0
    """With budget: the most that may cross from forward to backward, on one rank."""

    def check(self) -> None:
        if self.save and self.policy != "full":
            raise ConfigError(
                f"save is {list(self.save)} with policy {self.policy}",
                why="selectors say what full recomputation should keep",
                do="--passes.choose_saved.policy full",
            )
        for selector in self.save:
            path, found, op = selector.partition("::")
            if not (path and found and op):
                raise ConfigError(
                    f"{selector!r} selects nothing", why="a selector is PATH::OP", do="e.g. layers.*.attention.wo::mm"
                )
        check_range(self, "budget_gib", 1e-9, 1e9, zero="for no budget")
        if (self.policy == "budget") != (self.budget_gib > 0):
            raise ConfigError(
                f"policy is {self.policy} and budget_gib is {self.budget_gib}",
                why="a budget is used by policy budget, and only there",
                do="--passes.choose_saved.policy budget --passes.choose_saved.budget_gib 8",
            )

    def resolve(self, numerics: Numerics) -> Self:
        if self.policy != "auto":
            return self
        return self.replace(policy="min_cut" if numerics == "fast" else "default")
