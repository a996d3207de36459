"""Remove a concat of chunks that the next module splits again."""

import operator
from dataclasses import dataclass, field

import torch
from torch.fx import Node

from monograph.compat.ops import ATEN
from monograph.graph.edit import erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.query import value_of
from monograph.graph.step_graph import StepGraph
from monograph.passes.base import Pass
from monograph.plurals import counted


@dataclass
class MergePlan:
    """What is read instead of what, and what has no readers then."""

    same: dict[Node, Node] = field(default_factory=dict)
    """Chunk of a concatenated value -> the chunk it was made of."""
    dropped: list[Node] = field(default_factory=list)


class MergeChunks(Pass):
    """Read the chunks of a concatenated value directly where it is split into the same chunks.

    Before:  h = cat(h0, h1);  g0, g1 = split(h);  use(g0);  use(g1)
    After:   use(h0);  use(h1)
    Why:     neighbouring blocks that are called chunk by chunk would otherwise wait for each other's chunks at every
             boundary: without the concat, the next block's first chunk runs during this block's last all_to_all.
    """

    def skip(self, facts: Facts) -> str:
        if facts.chunking is None:
            return "no modules are chunked"
        return "" if facts.chunking.is_captured else "chunk_experts makes the chunks"

    def run(self, graph: StepGraph, facts: Facts) -> str:
        plan = plan_joins(graph)
        for part, source in plan.same.items():
            redirect(part, source)
        erase(plan.dropped)
        return f"{counted(len(plan.same), 'chunk')} read without a concat"


def plan_joins(graph: StepGraph) -> MergePlan:
    """Every split of a cat into the parts it was made of; copies that only made parts contiguous go as well."""
    plan = MergePlan()
    for split in graph.nodes:
        cat = split.args[0] if split.target is ATEN.split.Tensor else None
        if not isinstance(cat, Node) or cat.target is not ATEN.cat.default or not is_undone(cat, split):
            continue
        sources: list[Node] = list(cat.args[0])  # type: ignore[arg-type]
        parts = [user for user in split.users if user.target is operator.getitem]
        for part in parts:
            source = sources[part.args[1]]  # type: ignore[index]
            copies = [user for user in part.users if is_contiguous_copy(user)]
            plan.same |= {each: source for each in (part, *copies)}
            plan.dropped += [part, *copies]
        plan.dropped.append(split)
        if all(user in plan.dropped for user in cat.users):
            plan.dropped.append(cat)
    plan.dropped = sorted(plan.dropped)
    return plan


def is_undone(cat: Node, split: Node) -> bool:
    """Whether a split gives back what a cat was made of: same dim, same sizes, contiguous."""
    dim = cat.args[1] if len(cat.args) > 1 else 0
    along = split.args[2] if len(split.args) > 2 else 0
    parts = [value_of(part) for part in cat.args[0]]  # type: ignore[union-attr, arg-type]
    size = split.args[1]
    return dim == along and all(part.shape[dim] == size and part.is_contiguous() for part in parts)


def is_contiguous_copy(node: Node) -> bool:
    """Whether a node only copies its argument into contiguous memory."""
    return node.target is ATEN.clone.default and node.kwargs.get("memory_format") is torch.contiguous_format
