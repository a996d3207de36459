"""Matmuls in float8."""

import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.fx import Graph, Node

from monograph.annotate import Direction
from monograph.compat.float8 import check_float8_device
from monograph.compat.ops import ATEN
from monograph.graph.cast_weights import find_castings
from monograph.graph.edit import call_before, erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import is_backward, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, set_tag, tag_of
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_CAST_BOTH, FLOAT8_MATMUL
from monograph.kernels.float8_grouped import FLOAT8_GROUPED_MATMUL
from monograph.passes.base import Pass
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.compute.float8_plan import Key, Operand, QuantizedMatmul, plan_float8
from monograph.passes.compute.quantize_matmuls_options import QuantizeMatmulsConfig
from monograph.plurals import counted


class QuantizeMatmuls(Pass):
    """Matmuls of linears and experts read float8 operands with dynamic scales; each operand is cast once.

    Before:  y = mm(x, t(w));  ...  dx = mm(g, w);  dw = mm(t(g), x)
    After:   y = float8_matmul(cast(x), cast(w));  ...  g1, g2 = cast_both(g)
             dx = float8_matmul(g1, cast(t(w)));  dw = float8_matmul(g2, cast(t(x)))
    Why:     a GPU multiplies float8 twice as fast as bfloat16. Scales follow the largest magnitude of each row, or of a
             tensor. A cast is shared by all readers (x by q, k, v; g by both gradients), and one kernel writes both
             layouts. Weights are cast from the bfloat16 copies that the optimizer writes, else from fp32. Comes after
             recomputation, so that a recomputed matmul is quantized like the first. What runs outside of the blocks
             (output head), in fp32 (router), or is slower with its casts stays as it is, and its line in the graph
             says why.
    """

    Config = QuantizeMatmulsConfig
    bitwise = False
    is_low_precision = True

    def reads_machine(self, facts: Facts) -> bool:
        return bool(self.config.by_cost)

    def run(self, graph: StepGraph, facts: Facts) -> str:
        check_float8_device(facts.device)
        plan = plan_float8(graph, facts, self.config)
        apply_float8(graph.module.graph, plan)
        erase(plan_dead(graph))
        skip_copies(plan_copies(graph, facts))
        erase(plan_dead(graph))
        return describe_plan(plan, self.config.recipe)


def describe_plan(plan: Sequence[QuantizedMatmul], recipe: str) -> str:
    """How many matmuls were quantized, and why the others were not."""
    kinds = Counter(each.kind for each in plan if not each.reason)
    reasons = Counter(_without_numbers(each.reason) for each in plan if each.reason)
    done = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    left = "; ".join(f"{count}: {reason}" for reason, count in reasons.items())
    return f"{recipe}: {sum(kinds.values())} of {counted(len(plan), 'matmul')} ({done or 'none'})" + (
        f"; {left}" if left else ""
    )


def _without_numbers(reason: str) -> str:
    return "slower with its casts" if reason.startswith("casts take") else reason


def apply_float8(graph: Graph, plan: Sequence[QuantizedMatmul]) -> None:
    """Make the casts and matmuls; what stays in bfloat16 is told why."""
    casts = Casts(graph, plan)
    for each in plan:
        if each.reason:
            set_tag(each.node, replace(tag_of(each.node), choice=each.reason))
        else:
            redirect(each.node, make_matmul(graph, each, casts))


def make_matmul(graph: Graph, each: QuantizedMatmul, casts: "Casts") -> Node:
    """The matmul of the casts, right before the one that it replaces."""
    node = each.node
    (left, left_scale), (right, right_scale) = (casts.get(one, node) for one in (each.left, each.right))
    tag = replace(tag_of(node), made_by=QuantizeMatmuls.name())
    if each.is_grouped:
        ends = node.args[2]
        return call_before(graph, node, FLOAT8_GROUPED_MATMUL, (left, right, left_scale, right_scale, ends), tag)
    is_fast = each.left.is_rowwise or each.kind == "forward"
    return call_before(graph, node, FLOAT8_MATMUL, (left, right, left_scale, right_scale, is_fast), tag)


def plan_copies(graph: StepGraph, facts: Facts) -> list[Node]:
    """Bfloat16 copies that only casts to float8 read. A copy that the optimizer writes stays: it is read faster, and
    so does one that outlives forward in the place of a longer value."""
    written = find_castings(graph) if facts.is_single_pass and not facts.reshard else {}
    return [node for node in graph.nodes if node not in written and _is_copy(node) and _is_for_casts(node)]


def _is_copy(node: Node) -> bool:
    if node.target is not ATEN._to_copy.default or node.kwargs != {"dtype": torch.bfloat16}:
        return False
    return value_of(node.args[0]).dtype is torch.float32  # type: ignore[arg-type]


def _is_for_casts(node: Node) -> bool:
    stays = node.args[0].op == "placeholder"  # type: ignore[union-attr]
    halves = {is_backward(each) for each in (node, *node.users)}
    return (stays or len(halves) == 1) and all(user.target in (FLOAT8_CAST, FLOAT8_CAST_BOTH) for user in node.users)


def skip_copies(copies: Sequence[Node]) -> None:
    """Let casts read the fp32 values: they round to bfloat16 first."""
    for node in copies:
        redirect(node, node.args[0])  # type: ignore[arg-type]


class Casts:
    """Each operand in float8, once in forward and once in backward, made right before its first reader."""

    def __init__(self, graph: Graph, plan: Sequence[QuantizedMatmul]) -> None:
        self.graph = graph
        self.made: dict[Key, tuple[Node, Node]] = {}
        self.needs = {
            self.key(operand, each.node) for each in plan if not each.reason for operand in (each.left, each.right)
        }

    def key(self, operand: Operand, reader: Node) -> Key:
        """Equal for readers that share a cast."""
        return operand.key, is_backward(reader), operand.is_transposed

    def get(self, operand: Operand, reader: Node) -> tuple[Node, Node]:
        """Numbers and scales for a reader."""
        key = self.key(operand, reader)
        if key not in self.made:
            self.make(operand, reader)
        return self.made[key]

    def make(self, operand: Operand, reader: Node) -> None:
        """Cast an operand, in both layouts if both are read in this half of the step."""
        layouts = [(*self.key(operand, reader)[:2], flag) for flag in (False, True)]
        tag = _cast_tag(tag_of(reader))
        args = (operand.source, operand.dtype, operand.is_rowwise)
        if all(key in self.needs and key not in self.made for key in layouts):
            node = call_before(self.graph, reader, FLOAT8_CAST_BOTH, args, tag)
            keys = layouts
        else:
            node = call_before(self.graph, reader, FLOAT8_CAST, (*args, operand.is_transposed), tag)
            keys = [self.key(operand, reader)]
        for index, key in enumerate(keys):
            numbers, scales = (
                call_before(self.graph, reader, operator.getitem, (node, 2 * index + part), tag) for part in (0, 1)
            )
            self.made[key] = numbers, scales


def _cast_tag(tag: Tag) -> Tag:
    """A cast belongs to the module of its first reader; it is no gradient, and forward's are not for backward."""
    keep = False if tag.direction is Direction.FORWARD else None
    return replace(tag, made_by=QuantizeMatmuls.name(), gradient_of="", role=None, slot="", keep=keep)
