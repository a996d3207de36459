"""compile_whole: the step is one call, with the same results within rounding."""

import pytest
import torch

from monograph.graph.verify import check_graph
from monograph.parallel.mesh import Mesh
from monograph.passes.check import clone_graph
from tests.kit.pipelines import ASKED, capture_evaluation, capture_small, make_pass
from tests.passes.test_compile_regions import run_graph


@pytest.mark.slow
@pytest.mark.long
def test_the_whole_step_becomes_one_call_that_computes_the_same_within_rounding():
    plain, facts = capture_small("llama3", Mesh(), **{"model.n_layers": 1})
    for name in ("remove_no_ops", "remove_dead_code", "elide_trivial_collectives"):
        make_pass(name).run(plain, facts)
    graph = clone_graph(plain)
    whole = make_pass("compile_whole", ASKED)
    assert not whole.skip(facts)
    whole.run(graph, facts)
    check_graph(graph, facts)
    assert [node.op for node in graph.nodes if node.op == "call_module"] == ["call_module"]
    assert whole.run(graph, facts) == "compiled already"
    wanted, found = run_graph(plain), run_graph(graph)
    for name, value in wanted.items():
        assert torch.allclose(found[name], value, rtol=1e-4, atol=1e-6 + 1e-5 * value.abs().max().item()), name


@pytest.mark.long
def test_an_evaluation_becomes_one_call_without_gradients():
    graph, facts = capture_evaluation("llama3", **{"model.n_layers": 1})
    make_pass("elide_trivial_collectives").run(graph, facts)
    make_pass("compile_whole", ASKED).run(graph, facts)
    check_graph(graph, facts)


def test_it_does_nothing_unless_asked():
    assert make_pass("compile_whole").off == "by default; --passes.on compile_whole runs it"
