"""The parallel plan as data: which parameter is cut where, and which collective stands at which module's boundary.

All families name their parts alike, so one plan serves them; a new part adds its lines here. Patterns match module
paths component by component. Loads without torch.

Between the boundaries of a column/row pair every tensor-parallel rank computes with its own slice of heads or hidden
channels on the whole sequence; everywhere else each rank has its own slice of the sequence. Whatever is not cut is
replicated, and then every rank's gradient of it is a part of the whole: from its slice of the sequence, of the
heads, or of the vocabulary. So replicated gradients are always summed over the tensor-parallel ranks.
"""

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from monograph.axes import Axis


@dataclass(frozen=True, kw_only=True)
class ShardedDim:
    """One dim of a parameter divided along one axis of the mesh."""

    axis: Axis
    dim: int


class Boundary(StrEnum):
    """What happens to the stream where it enters or leaves a module."""

    GATHER_SEQUENCE = "gather_sequence"
    SCATTER_SEQUENCE = "scatter_sequence"


@dataclass(frozen=True, kw_only=True)
class ModuleRule:
    """Collectives at the boundaries of the modules a pattern matches."""

    pattern: str
    on_input: Boundary | None = None
    on_output: Boundary | None = None


@dataclass(frozen=True, kw_only=True)
class ParameterRule:
    """Cuts of the parameters a pattern matches."""

    pattern: str
    cuts: tuple[ShardedDim, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything `parallelize` needs to know about a model."""

    parameters: tuple[ParameterRule, ...]
    modules: tuple[ModuleRule, ...]

    def cuts_of(self, name: str) -> tuple[ShardedDim, ...]:
        """The cuts of one parameter; none when it is replicated."""
        return next((rule.cuts for rule in self.parameters if matches(rule.pattern, name)), ())

    def rule_of(self, path: str) -> ModuleRule | None:
        """The boundaries of one module, if it has any."""
        return next((rule for rule in self.modules if matches(rule.pattern, path)), None)


def matches(pattern: str, path: str) -> bool:
    """Whether a dotted path fits a pattern of the same length, component by component."""
    wanted, given = pattern.split("."), path.split(".")
    return len(wanted) == len(given) and all(fnmatchcase(g, w) for g, w in zip(given, wanted, strict=True))


def _columns(pattern: str) -> ParameterRule:
    return ParameterRule(pattern=pattern, cuts=(ShardedDim(axis=Axis.TP, dim=0),))


def _rows(pattern: str) -> ParameterRule:
    return ParameterRule(pattern=pattern, cuts=(ShardedDim(axis=Axis.TP, dim=1),))


def _experts(pattern: str, hidden_dim: int) -> ParameterRule:
    return ParameterRule(
        pattern=pattern, cuts=(ShardedDim(axis=Axis.EP, dim=0), ShardedDim(axis=Axis.ETP, dim=hidden_dim))
    )


def _pair(pattern: str) -> ModuleRule:
    return ModuleRule(pattern=pattern, on_input=Boundary.GATHER_SEQUENCE, on_output=Boundary.SCATTER_SEQUENCE)


DECODER_PLAN = Plan(
    parameters=(
        _columns("embedding.weight"),
        _columns("layers.*.attention.w[qkv].weight"),
        _columns("layers.*.attention.wq_b.weight"),
        _columns("layers.*.attention.wkv_b.weight"),
        _rows("layers.*.attention.wo.weight"),
        _columns("layers.*.feed_forward.w[13].weight"),
        _rows("layers.*.feed_forward.w2.weight"),
        _columns("layers.*.moe.shared_experts.w[13].weight"),
        _rows("layers.*.moe.shared_experts.w2.weight"),
        _experts("layers.*.moe.experts.w[13]", hidden_dim=1),
        _experts("layers.*.moe.experts.w2", hidden_dim=2),
        _columns("head.output.weight"),
    ),
    modules=(
        ModuleRule(pattern="embedding", on_output=Boundary.SCATTER_SEQUENCE),
        _pair("layers.*.attention"),
        _pair("layers.*.feed_forward"),
        _pair("layers.*.moe.shared_experts"),
        ModuleRule(pattern="head.norm", on_output=Boundary.GATHER_SEQUENCE),
    ),
)
"""The plan of every decoder in `models/`."""
