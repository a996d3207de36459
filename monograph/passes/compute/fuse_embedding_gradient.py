"""An embedding's gradient is added where the gradient of the head that shares its weight lies."""

from dataclasses import replace
from typing import NamedTuple, cast

from torch.fx import Node

from monograph.compat.ops import ATEN
from monograph.graph.edit import call_before, erase, redirect
from monograph.graph.facts import Facts
from monograph.graph.invariants import find_gradients
from monograph.graph.query import has_symbols, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.kernels.embedding_rows import ADD_EMBEDDING_ROWS
from monograph.passes.base import Pass
from monograph.passes.clean.remove_dead_code import plan_dead
from monograph.passes.compute.fusions import has_fusible_ops, is_plain_sum
from monograph.plurals import counted


class FuseEmbeddingGradient(Pass):
    """The gradient of an embedding is added row by row to a gradient that is there already.

    Before:  e = embedding_dense_backward(d, ids, vocabulary);  g = add(h, e)
    After:   g = add_embedding_rows(h, d, ids)
    Why:     where the output head shares the embedding's weight, a matrix of zeros as large as the vocabulary is
             filled, and read again to be added. Only the rows of tokens that occur have to be read and written, and
             the program adds them in place. Where gradients leave the step in the dtype they were computed in
             (narrow_gradients), so does this one: it is summed in fp32 and rounded once. Gradients that are reduced
             one by one before they are added stay as they are, and so do steps without custom ops (`model.kernels`).
    """

    bitwise = False

    def run(self, graph: StepGraph, facts: Facts) -> str:
        if not has_fusible_ops(graph):
            return "no custom ops to fuse"
        inside, count = graph.module.graph, 0
        gradients = {node for _, node in find_gradients(graph)} if facts.is_single_pass else set()
        for node in graph.nodes:  # one after the other: a sum may be what the next rows are added to
            found = plan_rows(node, is_narrow=node in gradients and len(node.users) == 1)
            if found is None:
                continue
            slot = tag_of(node).gradient_of or tag_of(found.source).gradient_of
            tag = replace(tag_of(found.source), gradient_of=slot, made_by=self.name())
            redirect(node, call_before(inside, node, ADD_EMBEDDING_ROWS, (found.base, *found.source.args[:2]), tag))
            count += 1
        if count:
            erase(plan_dead(graph))
            if graph.properties is not None:
                found_dtypes = tuple(value_of(node).dtype for node in graph.results if node is not None)
                graph.properties = replace(graph.properties, dtypes=found_dtypes)
        return f"{counted(count, 'embedding gradient')} accumulated row by row"


class RowSum(NamedTuple):
    """An embedding's gradient, and what it is added to."""

    base: Node
    source: Node


def plan_rows(total: Node, *, is_narrow: bool) -> RowSum | None:
    """A sum of an embedding's gradient that nothing else reads with another value.

    With `is_narrow`, the sum may have the dtype that both have before they are cast.
    """
    if not is_plain_sum(total) or has_symbols(value_of(total)):
        return None
    one, other = cast(tuple[Node, Node], total.args)
    for rows, base in ((other, one), (one, other)):
        source = _before_cast(rows)
        if rows is base or source.target is not ATEN.embedding_dense_backward.default or len(source.args) != 5:
            continue
        _, _, _, padding, is_scaled = source.args
        if is_scaled or padding != -1 or any(len(each.users) > 1 for each in {rows, source}):
            continue
        if is_narrow and source is not rows and value_of(_before_cast(base)).dtype == value_of(source).dtype:
            base = _before_cast(base)
        if value_of(base).is_contiguous():
            return RowSum(base, source)
    return None


def _before_cast(node: Node) -> Node:
    """What a value is a wider copy of, if nothing else reads the copy; else itself."""
    source = node.args[0] if node.target is ATEN._to_copy.default and len(node.users) == 1 else None
    return source if isinstance(source, Node) else node
