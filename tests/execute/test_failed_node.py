"""An exception from a running graph is traced back to the node that raised it."""

import torch

from monograph.compat.ops import ATEN
from monograph.execute.failed_node import describe_failed_node, find_failed_node
from tests.passes.written import BACKWARD, ByHand


def make_graph():
    hand = ByHand()
    x, w = hand.input("x", 4, 4), hand.input("w", 4, 4)
    good = hand.call(ATEN.mm.default, x, w, path="layers.0.ffn")
    bad = hand.call(ATEN.mm.default, good, w, path="layers.1.ffn", direction=BACKWARD)
    return hand.done(hand.call(ATEN.sum.default, bad, path="layers.1"), w=bad), bad


def test_the_node_that_raised_is_found_and_described():
    graph, bad = make_graph()
    inputs = [torch.ones(3, 4), torch.ones(4, 5)]  # the second matmul cannot take what the first one gives
    try:
        graph.module.recompile()
        graph.module(*inputs)
    except RuntimeError as error:
        found = find_failed_node(error, graph.module.graph)
    assert found is bad
    assert describe_failed_node(found) == "in layers.1.ffn, backward: aten.mm.default"


def test_an_exception_from_elsewhere_has_no_node():
    graph, _ = make_graph()
    try:
        int("no number")
    except ValueError as error:
        assert find_failed_node(error, graph.module.graph) is None
