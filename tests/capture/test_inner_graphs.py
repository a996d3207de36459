"""Graphs inside of ops: FlexAttention runs the score function it was given, which is part of the step."""

import operator

import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from monograph.annotate import annotate
from monograph.axes import Axis, Group
from monograph.capture.step import StepOutputs
from monograph.capture.trace import drop_missing, trace
from monograph.execute.program import lower
from monograph.graph.changes import find_changes, take_snapshot
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.graph.tags import tag_of
from monograph.graph.verify import check_graph
from monograph.models.model import Model, Unit
from monograph.passes.compile.compile_regions import CompileRegions
from monograph.passes.compile.mark_regions import MarkRegions
from monograph.passes.compile.mark_regions_options import MarkRegionsConfig

FACTS = Facts(
    degrees=dict.fromkeys(Axis, 1),
    group_sizes={group.value: 1 for group in Group},
    slots=(),
    reshard=False,
    device="cpu",
)


def steep(value, _batch, _head, query, key):
    return torch.where(query >= key, value - 0.5 * (query - key), -float("inf"))


def flat(value, _batch, _head, query, key):
    return torch.where(query >= key, value - 0.25 * (query - key), -float("inf"))


class Attention(Model):
    """FlexAttention over two heads; score functions have their numbers in them: torch 2.15 refuses to read a float."""

    def __init__(self, score) -> None:
        super().__init__()
        self.score = score
        self.proj = nn.Linear(16, 48, bias=False)

    def units(self):
        return [Unit("proj")]

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 8)).transpose(1, 2) for part in self.proj(x).chunk(3, -1))
        with annotate("flex"):
            return flex_attention(q, k, v, score_mod=self.score).sum()


def capture_attention(score=steep):
    """FlexAttention has no backward on a CPU, so this is the graph of an evaluation."""
    torch.manual_seed(0)
    model = Attention(score)
    weight, x, coords = model.proj.weight.detach(), torch.randn(2, 32, 16), torch.zeros(1, dtype=torch.int64)

    def step(state, buffers, batch, coords, scalars):
        loss = torch.func.functional_call(model, {"proj.weight": state["proj.weight"]}, (batch["x"],))
        return StepOutputs(loss, {}, {})

    with torch.no_grad():
        expected = model(x)
        graph = trace(step, model, StepInputs({"proj.weight": weight}, {}, {"x": x}, coords, {}))
    return graph, (weight, x, coords), expected


def run(graph, inputs):
    taken = []
    with torch.no_grad():
        lower(graph, lambda _spec, value: taken.append(value))(*inputs)
    return taken[0]


def test_a_graph_inside_of_an_op_is_tagged_printed_checked_and_run():
    graph, inputs, expected = capture_attention()
    check_graph(graph, FACTS)
    score, mask = graph.inner_graphs()
    assert {tag_of(node).region for _, module in (score, mask) for node in module.graph.nodes} == {"flex"}
    assert f"graph {score[0]}(" in graph.text() and "where.self" in graph.text().split(f"graph {score[0]}(")[1]
    assert torch.equal(run(graph, inputs), expected)


def test_a_change_inside_of_an_op_is_a_change_of_the_step():
    graph, _, _ = capture_attention()
    before = take_snapshot(graph)
    (name, inner), *_ = graph.inner_graphs()
    assert find_changes(before, take_snapshot(graph)).is_nothing
    first = next(node for node in inner.graph.nodes if node.op == "call_function")
    with inner.graph.inserting_before(first):
        inner.graph.call_function(torch.ops.aten.neg.default, (first.all_input_nodes[0],))
    assert find_changes(before, take_snapshot(graph)).altered == set(graph.nodes), name


def test_steps_that_differ_inside_of_an_op_have_different_digests():
    assert capture_attention()[0].digest() == capture_attention()[0].digest()
    assert capture_attention()[0].digest() != capture_attention(flat)[0].digest()


@pytest.mark.long
def test_the_region_around_it_is_compiled_with_it():
    graph, inputs, expected = capture_attention()
    MarkRegions(MarkRegionsConfig(regions=("flex",))).run(graph, FACTS)
    assert CompileRegions(None).run(graph, FACTS) == "1 parts, 1 compilations"
    assert "flex_attention" not in graph.text() and not graph.inner_graphs()
    torch.testing.assert_close(run(graph, inputs), expected, rtol=1e-5, atol=1e-5)


def test_a_result_that_an_op_did_not_compute_is_forgotten_unless_someone_reads_it():
    graph = torch.fx.Graph()
    pair = graph.call_function(torch.ops.aten.topk.default, (graph.placeholder("x"), 1))
    kept, missing = (graph.call_function(operator.getitem, (pair, index)) for index in range(2))
    kept.meta["val"] = torch.zeros(1)
    graph.output((kept,))
    drop_missing(graph)
    assert kept in graph.nodes and missing not in graph.nodes
