"""Which matmuls of a graph are computed in float8: by what they are, by the modules' paths, and by cost."""

import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.fx import Node

from monograph.compat.float8 import FLOAT8_MULTIPLE
from monograph.compat.ops import ATEN
from monograph.graph.cost import find_compute_seconds
from monograph.graph.facts import Facts
from monograph.graph.flops import count_flops
from monograph.graph.gradient_paths import is_value_preserving
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import is_backward, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import make_generic, tag_of
from monograph.graph.verify import find_fed
from monograph.passes.compute.matmuls import Key, key_of
from monograph.passes.compute.quantize_matmuls_options import QuantizeMatmulsConfig

GROUPED_MM = ATEN._grouped_mm.default
_MATMULS = (ATEN.mm.default, GROUPED_MM)
Kind = Literal["forward", "input gradient", "weight gradient"]
_READ_WRITTEN = {False: 3, True: 5}
"""Bytes that a cast moves for each number: read in bfloat16 and written in float8; transposed, read twice."""


@dataclass(frozen=True)
class Operand:
    """What a matmul reads, as a matrix whose rows or columns it contracts."""

    source: Node
    is_transposed: bool
    """Whether columns are contracted, so that the cast is transposed."""
    dtype: torch.dtype
    is_rowwise: bool
    is_weight: bool

    @property
    def key(self) -> Key:
        """Equal for operands that one cast serves."""
        return key_of(self.source), self.dtype, self.is_rowwise


@dataclass(frozen=True)
class QuantizedMatmul:
    """A matmul, its operands, and why it stays as it is; no reason when it is computed in float8."""

    node: Node
    kind: Kind
    left: Operand
    right: Operand
    reason: str = ""

    @property
    def is_grouped(self) -> bool:
        """Whether experts compute it."""
        return self.node.target is GROUPED_MM


def plan_float8(graph: StepGraph, facts: Facts, options: QuantizeMatmulsConfig) -> list[QuantizedMatmul]:
    """Every bfloat16 matmul of a block, with its choice."""
    fed = find_fed(graph, graph.nodes)
    found = [each for node in graph.nodes if (each := describe_matmul(node, fed, options))]
    found = [replace(each, reason=tag_of(each.node).choice or find_reason(each, options)) for each in found]
    machine = facts.machine
    if options.by_cost and machine.peak_flops("float8") > machine.peak_flops("bfloat16"):
        found = leave_by_cost(graph, found, facts)
    return found


def describe_matmul(node: Node, fed: set[Node], options: QuantizeMatmulsConfig) -> QuantizedMatmul | None:
    """What a node multiplies, when it is a bfloat16 matmul of a linear or of experts inside of a block."""
    if node.op != "call_function" or node.target not in _MATMULS or tag_of(node).block is None:
        return None
    if value_of(node).dtype is not torch.bfloat16:
        return None
    is_grouped, back = node.target is GROUPED_MM, is_backward(node)
    sources = [_strip(each) for each in node.args[:2]]
    weights = [source not in fed for source, _ in sources]
    is_again = tag_of(node).made_by == "recompute"
    kind: Kind = "forward" if not back or is_again else "input gradient"
    if not weights[1]:
        if weights[0] or not (back and yields_gradient(node)):
            return None
        kind = "weight gradient"
    is_rowwise = is_grouped or options.recipe != "tensorwise"
    dtypes = [torch.float8_e4m3fn, torch.float8_e4m3fn]
    if not is_rowwise and kind != "forward":
        dtypes[0] = torch.float8_e5m2
    (left, is_left_odd), (right, is_right_odd) = sources
    one = Operand(left, is_left_odd, dtypes[0], is_rowwise, weights[0])
    other = Operand(right, not is_right_odd, dtypes[1], is_rowwise, weights[1])
    return QuantizedMatmul(node, kind, one, other)


def _strip(node: Any) -> tuple[Node, bool]:
    """What a matrix is the transpose of, and whether it is."""
    is_odd = False
    while True:
        is_last = node.target is ATEN.transpose.int and _is_last_two(node)
        if node.target is not ATEN.t.default and not is_last:
            return node, is_odd
        node, is_odd = node.args[0], not is_odd


def _is_last_two(node: Node) -> bool:
    dims = value_of(node).dim()
    return {int(each) % dims for each in node.args[1:3]} == {dims - 2, dims - 1}  # type: ignore[arg-type]


def yields_gradient(node: Node) -> bool:
    """Whether a value is a parameter's gradient, by the tags on its way out: its own, or those of its parts."""
    if tag_of(node).gradient_of:
        return True
    return any(is_value_preserving(user.target) and yields_gradient(user) for user in node.users)


def find_reason(each: QuantizedMatmul, options: QuantizeMatmulsConfig) -> str:
    """Why a matmul stays in bfloat16, whatever it costs; empty when it need not."""
    tag = tag_of(each.node)
    paths = (tag.path, make_generic(tag.path, tag.unit))
    if options.only and not _matches(paths, options.only):
        return "not in only"
    if _matches(paths, options.skip):
        return "in skip"
    if each.kind == "weight gradient" and (each.is_grouped or options.recipe == "rowwise_hp_dw"):
        return "weight gradients stay in bfloat16" + (" in experts" if each.is_grouped else "")
    if not all(map(_fits, (each.left, each.right))):
        return f"widths are not multiples of {FLOAT8_MULTIPLE}"
    return ""


def _matches(paths: Sequence[str], patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for path in paths for pattern in patterns)


def _fits(operand: Operand) -> bool:
    """Whether both sizes of an operand suit the kernels; rows of experts may be any number."""
    value: Tensor = value_of(operand.source)
    sizes = value.shape[-1:] if not operand.is_transposed and not operand.is_weight else value.shape[-2:]
    return all(isinstance(size, int) and size % FLOAT8_MULTIPLE == 0 for size in sizes)


def leave_by_cost(graph: StepGraph, plan: Sequence[QuantizedMatmul], facts: Facts) -> list[QuantizedMatmul]:
    """The plan with a reason for every matmul whose share of the casts takes longer than float8 saves.

    Readers of one cast share its time, so that leaving one of them out may leave out others: until nothing changes.
    """
    sizes = LikelySizes(graph.module.graph)
    saved = {each.node: find_saved_seconds(each, sizes, facts) for each in plan}
    found = list(plan)
    while True:
        readers = Counter(_cast_key(one, each) for each in found if not each.reason for one in (each.left, each.right))
        changed = [_judge(each, saved[each.node], readers, sizes, facts) for each in found]
        if changed == found:
            return found
        found = changed


def _judge(
    each: QuantizedMatmul, saved: float, readers: Mapping[Key, int], sizes: LikelySizes, facts: Facts
) -> QuantizedMatmul:
    if each.reason:
        return each
    casts = 0.0
    for operand in (each.left, each.right):
        moved = _READ_WRITTEN[operand.is_transposed] * sizes.elements(value_of(operand.source))
        seconds = facts.machine.kernel_seconds + facts.machine.memory_seconds(moved)
        casts += seconds / readers[_cast_key(operand, each)]
    if saved > casts:
        return each
    return replace(each, reason=f"casts take {casts * 1e6:.0f} us, float8 saves {saved * 1e6:.0f} us")


def _cast_key(operand: Operand, each: QuantizedMatmul) -> Key:
    return operand.key, operand.is_transposed, is_backward(each.node)


def find_saved_seconds(each: QuantizedMatmul, sizes: LikelySizes, facts: Facts) -> float:
    """How much faster a matmul is in float8, without casts."""
    flops, machine = count_flops(each.node, sizes), facts.machine
    now = find_compute_seconds(each.node, sizes, machine, flops)
    return now - machine.matmul_seconds(flops, "float8_e4m3fn", is_grouped=each.is_grouped)
