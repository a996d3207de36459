"""The parallel plan as data: which parameter is sharded where, and which collective stands at which module's boundary.

Modules say how they are sharded, as they say how they start: `plan_parallel()` of a module returns rules for itself,
with paths that begin at it, and `collect_plan` puts the rules of all modules of a model together.

Between the boundaries of a column/row pair every tensor-parallel rank computes with its own slice of heads or hidden
channels on the whole sequence; everywhere else each rank has its own slice of the sequence. Whatever is not sharded is
replicated, and then every rank's gradient of it is a part of the whole: from its slice of the sequence, of the
heads, or of the vocabulary. So replicated gradients are always summed over the tensor-parallel ranks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TypeVar

from torch import nn

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


class ParallelForm(StrEnum):
    """What takes the place of a module, or of a function in it, on a mesh that has the axis."""

    VOCAB_EMBEDDING = "vocab_embedding"
    """An Embedding with rows of the vocabulary on every tensor-parallel rank; its output is a partial sum."""
    VOCAB_LOSS = "vocab_loss"
    """A module whose `loss` computes cross entropy of logits with their columns on all tensor-parallel ranks."""
    EXPERT_EXCHANGE = "expert_exchange"
    """A module whose `dispatch` sends tokens to the ranks of their experts."""
    COUNT_REDUCTION = "count_reduction"
    """A module whose `sum_counts` sums the router's counts over ranks."""
    SHARED_SEQUENCES = "shared_sequences"
    """An AttentionCore whose keys and values are on all context-parallel ranks."""
    SHARED_LATENTS = "shared_latents"
    """A LatentAttention whose latents are on all context-parallel ranks."""
    NUMBERED_HEADS = "numbered_heads"
    """A module whose `find_first_head` finds the number of a tensor-parallel rank's first head."""
    RANDOM_POSITIONS = "random_positions"
    """A module whose `find_starts` knows where its rows begin in the whole, unsharded value."""


@dataclass(frozen=True, kw_only=True)
class ModuleRule:
    """Collectives at the boundaries of the modules a pattern matches, and what takes their place."""

    pattern: str
    on_input: Boundary | None = None
    on_output: Boundary | None = None
    form: ParallelForm | None = None
    replicated: tuple[str, ...] = ()
    """Weights in it, by path, that every rank holds whole on purpose: what reads them is computed on all ranks."""


@dataclass(frozen=True, kw_only=True)
class ParameterRule:
    """Which dims of the parameters a pattern matches are sharded."""

    pattern: str
    cuts: tuple[ShardedDim, ...]


@dataclass(frozen=True, kw_only=True)
class ParallelPlan:
    """How a model, or one module of it, is sharded. Patterns match paths component by component."""

    parameters: tuple[ParameterRule, ...] = ()
    modules: tuple[ModuleRule, ...] = ()

    def cuts_of(self, name: str) -> tuple[ShardedDim, ...]:
        """The sharded dims of one parameter; none when it is replicated."""
        rule = self._find(self._parameters, name)
        return () if rule is None else rule.cuts

    def rule_of(self, path: str) -> ModuleRule | None:
        """The boundaries of one module, if it has any."""
        return self._find(self._modules, path)

    @cached_property
    def _parameters(self) -> "RuleIndex[ParameterRule]":
        return index_rules(self.parameters)

    @cached_property
    def _modules(self) -> "RuleIndex[ModuleRule]":
        return index_rules(self.modules)

    @staticmethod
    def _find(index: "RuleIndex[Rule]", path: str) -> "Rule | None":
        exact, patterns = index
        return exact.get(path) or next((rule for rule in patterns if matches(rule.pattern, path)), None)

    def under(self, path: str) -> "ParallelPlan":
        """The same plan for a module that is at `path`."""
        return ParallelPlan(
            parameters=tuple(replace(rule, pattern=join_path(path, rule.pattern)) for rule in self.parameters),
            modules=tuple(replace(rule, pattern=join_path(path, rule.pattern)) for rule in self.modules),
        )

    def __add__(self, other: "ParallelPlan") -> "ParallelPlan":
        return ParallelPlan(parameters=self.parameters + other.parameters, modules=self.modules + other.modules)


Rule = TypeVar("Rule", ParameterRule, ModuleRule)
RuleIndex = tuple[dict[str, Rule], list[Rule]]
"""Rules for one path, by path, and those for many: a model has a thousand of the former."""


def index_rules(rules: Iterable[Rule]) -> RuleIndex[Rule]:
    """The rules, apart from those with wildcards; of two for one path the first counts."""
    exact: dict[str, Rule] = {}
    patterns: list[Rule] = []
    for rule in rules:
        if any(mark in rule.pattern for mark in "*?["):
            patterns.append(rule)
        else:
            exact.setdefault(rule.pattern, rule)
    return exact, patterns


def collect_plan(model: nn.Module) -> ParallelPlan:
    """The rules of all modules of a model that have any."""
    plans = [
        module.plan_parallel().under(path)
        for path, module in model.named_modules()
        if path and callable(getattr(module, "plan_parallel", None))
    ]
    return sum(plans, ParallelPlan())


def join_path(path: str, rest: str) -> str:
    """`rest` as seen from where `path` begins."""
    return f"{path}.{rest}".strip(".")


def matches(pattern: str, path: str) -> bool:
    """Whether a dotted path fits a pattern of the same length, component by component."""
    wanted, given = pattern.split("."), path.split(".")
    return len(wanted) == len(given) and all(fnmatchcase(g, w) for g, w in zip(given, wanted, strict=True))


def shard_columns(pattern: str) -> ParameterRule:
    """Column-parallel: shard the output channels of a weight [out, in], or of its bias, over tensor-parallel ranks."""
    return ParameterRule(pattern=pattern, cuts=(ShardedDim(axis=Axis.TP, dim=0),))


def shard_rows(pattern: str) -> ParameterRule:
    """Row-parallel: shard the input channels of a weight [out, in]; every rank computes a partial sum."""
    return ParameterRule(pattern=pattern, cuts=(ShardedDim(axis=Axis.TP, dim=1),))


def shard_experts(pattern: str, hidden_dim: int) -> ParameterRule:
    """Shard a stack of experts' weights: experts over ep, hidden channels over etp."""
    return ParameterRule(
        pattern=pattern, cuts=(ShardedDim(axis=Axis.EP, dim=0), ShardedDim(axis=Axis.ETP, dim=hidden_dim))
    )


def plan_column_row_pair(
    columns: Iterable[str], rows: Iterable[str], *, replicated: Iterable[str] = ()
) -> ParallelPlan:
    """A module that gathers the sequence, computes with its share of channels, and scatters the sum of all shares."""
    boundaries = ModuleRule(
        pattern="",
        on_input=Boundary.GATHER_SEQUENCE,
        on_output=Boundary.SCATTER_SEQUENCE,
        replicated=tuple(replicated),
    )
    return ParallelPlan(
        parameters=(*map(shard_columns, columns), *map(shard_rows, rows)),
        modules=(boundaries,),
    )


def plan_vocab_embedding(path: str) -> ParallelPlan:
    """An Embedding at `path`, with rows of the vocabulary on every tensor-parallel rank; the stream begins after it."""
    rule = ModuleRule(pattern=path, on_output=Boundary.SCATTER_SEQUENCE, form=ParallelForm.VOCAB_EMBEDDING)
    return ParallelPlan(parameters=(shard_columns(f"{path}.weight"),), modules=(rule,))


def plan_vocab_head(*, norm: str, output: str = "output.weight") -> ParallelPlan:
    """A head with the loss: the stream ends after `norm`, and logits stay where their columns of `output` are.

    The module computes the loss with its attribute `loss`, from `output.weight`.
    """
    return ParallelPlan(
        parameters=(shard_columns(output),),
        modules=(
            ModuleRule(pattern="", form=ParallelForm.VOCAB_LOSS),
            ModuleRule(pattern=norm, on_output=Boundary.GATHER_SEQUENCE),
        ),
    )
