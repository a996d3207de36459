"""mark_regions: blocks or named regions are marked, parts end at collectives, wrong names are refused."""

import operator

import pytest
import torch

from monograph.compat.ops import ALL_REDUCE, ATEN, WAIT_TENSOR
from monograph.errors import ConfigError
from monograph.graph.query import is_launch, is_wait
from monograph.graph.tags import tag_of
from monograph.parallel.mesh import Mesh
from monograph.passes.compile.mark_regions_options import MarkRegionsConfig
from monograph.passes.compile.regions import find_region, group_consecutive, make_region_key
from monograph.passes.config import PassesConfig
from tests.kit.pipelines import capture_small, make_pass
from tests.passes.written import BACKWARD, ByHand, run

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


def test_slices_of_the_loss_are_parts_of_their_own_and_of_one_kind():
    graph, facts = capture_small("llama3", Mesh(), **{"model.loss.chunk_tokens": 8})
    make_pass("mark_regions", PassesConfig(mark_regions=MarkRegionsConfig(regions=("outside",)))).run(graph, facts)
    runs = group_consecutive(graph.nodes, lambda node: tag_of(node).compile or None)
    slices = [run for run in runs if tag_of(run[0]).region.startswith("slice")]
    assert len(slices) > 2
    assert len({make_region_key(find_region(run)) for run in slices}) == 1, "compiled once"
    assert all(tag_of(node).block is None for run in runs for node in run)


def test_sums_that_a_compiler_would_make_atomic_stay_as_they_are():
    graph, facts = capture_small(
        "llama3", Mesh(), **{"training.compute_dtype": "bfloat16", "model.tied_embeddings": True}
    )
    make_pass("elide_trivial_collectives").run(graph, facts)  # nothing is left that would part the sum from its casts
    regions = MarkRegionsConfig(regions=("blocks", "outside"))
    make_pass("mark_regions", PassesConfig(mark_regions=regions)).run(graph, facts)
    rows = [node for node in graph.nodes if node.target is torch.ops.aten.embedding_dense_backward.default]
    assert rows and not any(tag_of(node).compile for node in rows)


def test_the_results_of_an_op_stay_with_it():
    hand = ByHand()
    w = hand.input("w", 4)
    pieces = hand.call(ATEN.split.Tensor, w, 2, path="layers.0")
    moved = hand.call(WAIT_TENSOR, hand.call(ALL_REDUCE, w, "sum", "tp"))
    parts = [hand.call(operator.getitem, pieces, index, path="layers.0") for index in (0, 1)]
    loss = hand.call(ATEN.sum.default, hand.call(ATEN.mul.Tensor, *parts, path="layers.0"))
    graph = hand.done(loss, w=hand.call(ATEN.mul.Tensor, moved, 2, direction=BACKWARD))
    run("mark_regions", graph, config=PassesConfig(mark_regions=MarkRegionsConfig(regions=("blocks",))))
    calls = [node for node in graph.nodes if node.op == "call_function"]
    assert calls[:3] == [pieces, *parts], "else a part to compile would end between them"
