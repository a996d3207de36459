"""FlexAttention on a GPU is compiled, each kind once; here the compiler is replaced by the reference."""

import dataclasses

import pytest
import torch

from monograph.compat.flex import FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD
from monograph.errors import ConfigError
from monograph.graph.tags import tag_of
from monograph.graph.verify import check_graph
from monograph.parallel.mesh import Mesh
from monograph.passes.compile import compile_flex
from monograph.passes.compile.compile_flex import CompileFlex, plan_flex_regions
from monograph.passes.compile.mark_regions import MarkRegions
from monograph.passes.compile.mark_regions_options import MarkRegionsConfig
from monograph.passes.compile.regions import CompiledRegion, extract_subgraph
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from tests.kit.pipelines import capture_small

FLEX = {"model.attention.kernel": "flex", "model.n_layers": 3}
BOTH = (FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD)


@pytest.fixture
def compiled(monkeypatch):
    """The regions that a compiler was given; their code is the region itself."""
    given = []

    def compile_region(_graph, region, *, for_artifact):
        given.append(region)
        return CompiledRegion(extract_subgraph(region))

    monkeypatch.setattr(compile_flex, "compile_region", compile_region)
    return given


def test_all_layers_share_two_compilations_and_the_graph_keeps_the_rules(compiled):
    graph, facts = capture_small("llama3", Mesh(), **FLEX)
    facts = dataclasses.replace(facts, device="cuda")
    assert sum(node.target in BOTH for node in graph.nodes) == 6
    assert CompileFlex(None).run(graph, facts) == "6 attentions, 2 compilations"
    assert len(compiled) == 2 and not any(node.target in BOTH for node in graph.nodes) and not graph.inner_graphs()
    calls = [node for node in graph.nodes if node.op == "call_module"]
    assert [node.target for node in calls] == ["compiled_0"] * 3 + ["compiled_1"] * 3
    assert {tag_of(node).path for node in calls} == {f"layers.{n}.attention.attend" for n in range(3)}
    check_graph(graph, facts)
    assert CompileFlex(None).run(graph, facts) == "0 attentions, 0 compilations"


def test_after_all_other_passes_a_backward_reads_its_compiled_forward(compiled):
    graph, facts = capture_small("llama3", Mesh(), **FLEX)
    run_passes(graph, build_passes(PassesConfig()), dataclasses.replace(facts, device="cuda"), is_measured=False)
    assert len(compiled) == 2 and not any(node.target in BOTH for node in graph.nodes)


def test_on_a_cpu_it_is_skipped_with_the_reason():
    _, facts = capture_small("llama3", Mesh(), **FLEX)
    assert CompileFlex(None).skip(facts) == "captured without a GPU: its reference computes FlexAttention"
    assert not CompileFlex(None).skip(dataclasses.replace(facts, device="cuda"))


def test_layers_of_a_kind_that_would_be_compiled_twice_are_an_error():
    graph, _ = capture_small("llama3", Mesh(), **FLEX)
    node = [node for node in graph.nodes if node.target is FLEX_ATTENTION][1]
    node.args[0].meta["val"] = torch.empty_like(node.args[0].meta["val"]).contiguous()
    with pytest.raises(ConfigError, match=r"layers.0.attention.attend and layers.1.attention.attend .* compiled twice"):
        plan_flex_regions(graph)


def test_regions_compiled_on_a_cpu_leave_it_out():
    graph, facts = capture_small("llama3", Mesh(), **FLEX)
    MarkRegions(MarkRegionsConfig(regions=("blocks",))).run(graph, facts)
    marked = [bool(tag_of(node).compile) for node in graph.nodes if node.target in BOTH]
    assert marked == [False] * 6
