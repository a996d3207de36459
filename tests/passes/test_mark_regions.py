"""mark_regions: blocks or named regions are marked, parts end at transfers, wrong names are refused."""

import pytest

from monograph.errors import ConfigError
from monograph.graph.query import is_launch, is_wait
from monograph.graph.tags import tag_of
from monograph.parallel.mesh import Mesh
from monograph.passes.config import MarkRegionsConfig, PassesConfig
from tests.passes.kit import capture_small, make_pass

SPREAD = Mesh(dp_shard=2, ep=2)


def mark(*regions, mesh=SPREAD):
    graph, facts = capture_small("deepseek_v3", mesh)
    said = make_pass("mark_regions", PassesConfig(mark_regions=MarkRegionsConfig(regions=regions))).run(graph, facts)
    return [node for node in graph.nodes if tag_of(node).compile], said


def test_all_of_a_block_is_marked_but_its_transfers_and_sizes():
    marked, _ = mark("blocks")
    assert {tag_of(node).block for node in marked} == {0, 1, 2}
    assert {tag_of(node).direction for node in marked} == {"forward", "backward"}
    assert not any(is_launch(node) or is_wait(node) for node in marked)


def test_a_region_is_marked_by_the_name_it_was_annotated_with():
    marked, _ = mark("compute", mesh=Mesh())
    assert {tag_of(node).region for node in marked} == {"compute"}
    assert {tag_of(node).block for node in marked} == {1, 2}, "the blocks with experts"


def test_a_name_nobody_gave_is_refused_with_those_that_exist():
    with pytest.raises(ConfigError, match="'attenton'") as refused:
        mark("attenton")
    assert "blocks, outside, combine, compute, dispatch" in refused.value.do
