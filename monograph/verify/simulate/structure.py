"""Whether a run's own step has the structure of its small copy: then what the copy shows holds at real sizes as well.

Each unit of the step, a block or what lies around blocks, is reduced to its ops: what they compute, in which direction
and for what, over which group and along which dims, and from which results of the unit. Sizes are left out, and so is
the order of ops that do not depend on each other.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from monograph.annotate import Role
from monograph.axes import Group
from monograph.graph.signature import InputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, find_tag

CAPTURED = "captured"
"""The name of a graph before any pass."""
OUTSIDE = "outside"
"""An operand that another unit computes."""
PADDED = frozenset((Role.PARAM_ALL_GATHER, Role.GRAD_REDUCE_SCATTER))
PADDING = frozenset(("aten.slice.Tensor", "aten.constant_pad_nd.default"))
"""Ops of shards that ranks cannot divide evenly: a copy may need them where the run does not."""
DIMS = frozenset(("dim", "dims", "dim0", "dim1", "self_dim", "start_dim", "end_dim", "reduceOp", "reduce_op"))
"""Arguments that are no sizes."""
HANDED_ON = frozenset((InputKind.CARRY, InputKind.CARRY_GRADIENT))
"""Inputs of a pipeline stage that another unit computes."""
_GROUPS = frozenset(group.value for group in Group)
Digest = str


@dataclass(frozen=True)
class UnitOps:
    """The ops of one unit, whatever their order."""

    digest: Digest
    counts: Mapping[str, int]
    """How often each op occurs, in words."""


@dataclass(frozen=True)
class StructureCheck:
    """What of a run's own graph its small copy has."""

    after: str
    """The pass that made both graphs, or `captured`."""
    units: int
    """Units of the run's graph."""
    kinds: int
    """Kinds of them: units of a kind have the same ops."""
    differences: tuple[str, ...]
    """One line for each kind that no unit of the copy has."""

    @property
    def is_complete(self) -> bool:
        """Whether what was shown of the copy holds for the run."""
        return not self.differences


def compare_structure(real: Sequence[StepGraph], small: Sequence[StepGraph], after: str = CAPTURED) -> StructureCheck:
    """Look for each unit of the real graphs among those of the small ones."""
    ours, theirs = find_units(real), find_units(small)
    known = {unit.digest for unit in theirs.values()}
    missing: dict[Digest, list[str]] = {}
    for name, unit in ours.items():
        if unit.digest not in known:
            missing.setdefault(unit.digest, []).append(name)
    differences = []
    for names in missing.values():
        counts = ours[names[0]].counts
        nearest = min(theirs, key=lambda name: _distance(counts, theirs[name].counts))
        differences.append(describe_difference(names, counts, nearest, theirs[nearest].counts))
    return StructureCheck(after, len(ours), len({unit.digest for unit in ours.values()}), tuple(differences))


def describe_difference(names: Sequence[str], ours: Mapping[str, int], nearest: str, theirs: Mapping[str, int]) -> str:
    """What a unit has and the most similar one of the copy has not, or the other way round."""
    label = names[0] or "outside of units"
    where = label if len(names) == 1 else f"{label} and {len(names) - 1} more"
    gaps = {op: ours.get(op, 0) - theirs.get(op, 0) for op in sorted({*ours, *theirs})}
    words = [f"{abs(gap)} {op} {'more' if gap > 0 else 'fewer'}" for op, gap in gaps.items() if gap]
    what = ", ".join(words[:4]) + (f" and {len(words) - 4} more" if len(words) > 4 else "")
    return f"{where}: {what or 'the same ops with other operands'} than {nearest or 'outside of units'} of the copy"


def find_units(graphs: Sequence[StepGraph]) -> dict[str, UnitOps]:
    """The ops of every unit by its path; several graphs are the stages of one step."""
    entries: dict[str, list[tuple[Digest, str]]] = {}
    for graph in graphs:
        for unit, digest, words in _describe_nodes(graph):
            entries.setdefault(unit, []).append((digest, words))
    return {
        unit: UnitOps(_hash(sorted(_keep(unit, found))), Counter(words for _, words in found))
        for unit, found in entries.items()
    }


def _keep(unit: str, found: Sequence[tuple[Digest, str]]) -> Iterable[Digest]:
    """Outside of units, what is done for each block is done as often as there are blocks."""
    digests = [digest for digest, _ in found]
    return digests if unit else set(digests)


def _describe_nodes(graph: StepGraph) -> Iterator[tuple[str, Digest, str]]:
    specs = dict(zip(graph.placeholders, graph.inputs, strict=True))
    digests: dict[Node, tuple[str, Digest]] = {}
    for node in graph.nodes:
        if node in specs:
            if specs[node].kind not in HANDED_ON:
                digests[node] = "", _hash([specs[node].kind.value])
            continue
        if node.op != "call_function":
            continue
        tag = find_tag(node) or Tag()
        first = node.all_input_nodes[0] if node.all_input_nodes else None
        if tag.role in PADDED and str(node.target) in PADDING and first in digests:
            digests[node] = digests[first]
            continue
        constants = list(find_constants(node))
        words = " ".join(map(str, [node.target, *constants]))
        path = tag.path.removeprefix(tag.unit)
        operands = [_describe_operand(digests, operand, tag.unit, specs) for operand in node.all_input_nodes]
        operands = operands if tag.unit else list(dict.fromkeys(operands))  # one for each block
        digest = _hash([words, path, str(tag.direction), str(tag.role), *operands])
        digests[node] = tag.unit, digest
        yield tag.unit, digest, words


def _describe_operand(digests: Mapping[Node, tuple[str, Digest]], operand: Node, unit: str, specs: Any) -> str:
    if operand not in digests:
        return OUTSIDE
    where, digest = digests[operand]
    return digest if where == unit or operand in specs else OUTSIDE


def find_constants(node: Node) -> Iterator[Any]:
    """Groups, kinds of reductions and dims among the arguments of a node."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return
    given = {**dict(zip((each.name for each in schema.arguments), node.args, strict=False)), **node.kwargs}
    for name, value in given.items():
        if isinstance(value, str) and value in _GROUPS:
            yield value
        elif name in DIMS:
            yield f"{name} {value}"


def _distance(one: Mapping[str, int], other: Mapping[str, int]) -> int:
    return sum(abs(one.get(op, 0) - other.get(op, 0)) for op in {*one, *other})


def _hash(parts: Sequence[str]) -> Digest:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
