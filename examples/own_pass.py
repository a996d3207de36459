"""A pass of your own: a module that computes the same value twice computes it once.

monograph passes --passes.extra examples.own_pass:ShareEqualValues
monograph check-pass examples.own_pass:ShareEqualValues
monograph train llama3_debugmodel --passes.extra examples.own_pass:ShareEqualValues
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.fx import Node

from monograph.graph.edit import erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import alias_of, is_launch, is_wait, makes_symbols, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.passes.base import Pass


class ShareEqualValues(Pass):
    """Equal calls on equal values in one module and direction are made once.

    Before:  a = neg(sin);  b = neg(sin);  q = rope(x, a);  k = rope(y, b)
    After:   a = neg(sin);  q = rope(x, a);  k = rope(y, a)
    Why:     the backward of RoPE negates the same table for queries and for keys. What recompute repeats in backward
             is not shared with forward: keeping it alive until then is what recompute avoids.
    """

    after = ("recompute",)
    bitwise = True

    @dataclass(kw_only=True, slots=True)
    class Config(Pass.Config):
        """Options of ShareEqualValues."""

        max_bytes: int = 1 << 30
        """Compute larger values twice: a shared value is in memory until its last reader has run."""

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_sharing(graph, self.config.max_bytes)
        apply_sharing(plan)
        return f"{len(plan)} values shared"


def plan_sharing(graph: StepGraph, max_bytes: int) -> dict[Node, Node]:
    """Later node -> the earlier one with the same value; reads the graph, changes nothing."""
    first: dict[tuple[Any, ...], Node] = {}
    plan: dict[Node, Node] = {}
    for node in graph.nodes:
        if can_share(node, max_bytes):
            same = first.setdefault(make_key(node, plan), node)
            if same is not node:
                plan[node] = same
    return plan


def apply_sharing(plan: dict[Node, Node]) -> None:
    """Let the readers of each later node read the earlier one, and remove it."""
    for later, earlier in plan.items():
        redirect(later, earlier)
    erase(plan)


def can_share(node: Node, max_bytes: int) -> bool:
    """Calls that yield one new tensor; views cost nothing, and collectives are other passes' work."""
    value = value_of(node)
    if node.op != "call_function" or not isinstance(value, Tensor) or makes_symbols(node):
        return False
    if is_launch(node) or is_wait(node) or alias_of(node) is not None or tag_of(node).slot:
        return False
    is_returned = any(user.op == "output" for user in node.users)
    sizes = [size for size in value.shape if isinstance(size, int)]
    is_small = len(sizes) < value.dim() or value.numel() * value.element_size() <= max_bytes
    return is_small and not is_returned


def make_key(node: Node, plan: dict[Node, Node]) -> tuple[Any, ...]:
    """Equal for nodes that do the same, in the same module and direction, to the same values."""
    tag = tag_of(node)
    shown = [str(plan.get(each, each)) if isinstance(each, Node) else str(each) for each in node.args]
    named = [f"{name}={plan.get(each, each) if isinstance(each, Node) else each}" for name, each in node.kwargs.items()]
    return node.target, *shown, *named, tag.path, tag.direction, tag.chunk
