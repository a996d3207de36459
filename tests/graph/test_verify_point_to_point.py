"""Sends and receives in a graph: waited for, over their own groups, with a pipeline rank that exists."""

import pytest
import torch
from torch.fx import Graph, GraphModule

from monograph.compat.capture import fake_tensors
from monograph.compat.ops import WAIT_TENSOR
from monograph.graph.facts import Facts
from monograph.graph.refuse import GraphError
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import Tag, set_tag
from monograph.graph.verify_collectives import check_collectives
from monograph.parallel.pipeline.point_to_point import RECV, SEND

FACTS = Facts(group_sizes={"pp_up": 2, "pp_down": 2, "tp": 2})


def build(*, peer=1, tag=0, group="pp_up", is_waited=True):
    """Receive a value from below, send another one up."""
    graph = Graph()
    value = graph.placeholder("value")
    received = graph.call_function(
        RECV, ([2, 3], torch.float32, torch.device("cpu"), 0 if peer == 1 else peer, tag, "pp_up")
    )
    arrived = graph.call_function(WAIT_TENSOR, (received,))
    sent = graph.call_function(SEND, (value, peer, tag, group))
    ends = [arrived, graph.call_function(WAIT_TENSOR, (sent,))] if is_waited else [arrived]
    graph.output((ends,))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(2, 3)
        set_tag(node, Tag())
    return StepGraph(module=GraphModule(torch.nn.Module(), graph), inputs=(), outputs=())


def check(graph):
    check_collectives(graph, graph.nodes, FACTS)


def test_a_send_and_a_receive_that_are_waited_for_pass():
    check(build())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"peer": 2}, "there is no pipeline rank 2"),
        ({"peer": -1}, "there is no pipeline rank -1"),
        ({"tag": -3}, "the tag of a send or receive is -3"),
        ({"group": "tp"}, "a send or receive over 'tp'"),
        ({"group": "pp_sideways"}, "there is no group"),
        ({"is_waited": False}, "waited for 0 times"),
    ],
)
def test_a_wrong_send_or_receive_is_refused_by_what_is_wrong(changes, words):
    with pytest.raises(GraphError, match=words):
        check(build(**changes))


def test_fake_tensors_know_what_is_received():
    with fake_tensors():
        value = RECV([4, 5], torch.bfloat16, torch.device("cpu"), 1, 0, "pp_down")
        assert (tuple(value.shape), value.dtype) == ((4, 5), torch.bfloat16)
        assert SEND(value, 1, 0, "pp_up").shape == (1,)
