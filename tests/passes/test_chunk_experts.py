"""Modules made once per chunk: what the text looks like before and after, and what is refused."""

import pytest
import torch

from monograph.compat.ops import ALL_TO_ALL, REDUCE_SCATTER
from monograph.errors import ConfigError
from monograph.graph.query import is_launch, value_of
from monograph.graph.refuse import GraphError
from monograph.graph.tags import tag_of
from monograph.graph.verify import check_graph
from monograph.parallel.mesh import Mesh
from monograph.passes.clean.remove_dead_code import RemoveDeadCode
from monograph.passes.clean.remove_no_ops import RemoveNoOps
from monograph.passes.comm.elide_trivial_collectives import ElideTrivialCollectives
from monograph.passes.overlap.chunk_experts import ChunkExperts
from tests.kit.pipelines import capture_small
from tests.passes.chunk_toys import Crossing, Leaking, Looping, Noisy, Plain, Talking, capture_stack

BEFORE = """\
forward block 0:
  0: float32[4, 4] = all_gather_into_tensor(%layers.*.w, 2, fsdp_gather)  <<  # param_all_gather layers.*.w
  1: float32[4, 4] = wait_tensor(f.0)  # param_all_gather layers.*.w
  2: float32[4, 4] = t(f.1)  # layers.*
  3: float32[8, 4] = mm(%x, f.2)  # layers.*
  4: float32[8, 4] = relu(f.3)  # layers.*
"""
AFTER = """\
forward block 0:
  0: 2 values = split.Tensor(%x, 4, 0)  # layers.* by chunk_experts
  1: float32[4, 4] = getitem(f.0, 0)  # layers.* chunk 0 by chunk_experts
  2: float32[4, 4] = getitem(f.0, 1)  # layers.* chunk 1 by chunk_experts
  3: float32[4, 4] = all_gather_into_tensor(%layers.*.w, 2, fsdp_gather)  <<  # param_all_gather layers.*.w
  4: float32[4, 4] = wait_tensor(f.3)  # param_all_gather layers.*.w
  5: float32[4, 4] = t(f.4)  # layers.*
  6: float32[4, 4] = mm(f.1, f.5)  # layers.* chunk 0 by chunk_experts
  7: float32[4, 4] = mm(f.2, f.5)  # layers.* chunk 1 by chunk_experts
  8: float32[4, 4] = relu(f.6)  # layers.* chunk 0 by chunk_experts
  9: float32[4, 4] = relu(f.7)  # layers.* chunk 1 by chunk_experts
  10: float32[8, 4] = cat([f.8, f.9], 0)  # layers.* by chunk_experts
"""
GRADIENT = """\
  9: float32[4, 4] = mm(b.7, f.1)  # layers.* chunk 0 by chunk_experts
  10: float32[4, 4] = mm(b.8, f.2)  # layers.* chunk 1 by chunk_experts
  11: float32[4, 4] = add.Tensor(b.10, b.9)  # layers.* by chunk_experts
  12: float32[2, 4] = reduce_scatter_tensor(b.11, sum, 2, fsdp_scatter)  <<  # grad_reduce_scatter layers.*.w
"""


def cut_stack(*args, **options):
    graph, facts = capture_stack(*args, **options)
    for each in (RemoveNoOps(), RemoveDeadCode(), ChunkExperts()):
        each.run(graph, facts)
        check_graph(graph, facts)
    return graph


def test_a_module_runs_once_per_chunk_and_shares_its_weights():
    graph, facts = capture_stack()
    RemoveNoOps().run(graph, facts)
    RemoveDeadCode().run(graph, facts)
    assert graph.text().startswith(BEFORE)
    ChunkExperts().run(graph, facts)
    check_graph(graph, facts)
    assert graph.text().startswith(AFTER)


def test_chunks_gradients_are_added_the_last_one_first_and_travel_once():
    assert GRADIENT in cut_stack().text()


def test_chunks_gradients_travel_one_by_one_when_they_are_added_afterwards():
    once, each = (cut_stack(num_chunks=4, grad_sum=when) for when in ("before_reduce", "after_reduce"))
    scatters = [sum(node.target is REDUCE_SCATTER for node in graph.nodes) for graph in (once, each)]
    assert scatters == [1, 4]
    result = each.results[1]
    assert [tag_of(part).chunk for part in result.all_input_nodes] == [None, 0]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("grad_sum", ["before_reduce", "after_reduce"])
def test_chunks_gradients_are_added_in_the_reduce_dtype(ranks, grad_sum):
    """Without a collective in between, the casts to and from the reduce dtype are adjacent."""
    graph, facts = capture_stack(mesh=Mesh(dp_shard=ranks), reduce_dtype=torch.bfloat16, grad_sum=grad_sum)
    for each in (RemoveNoOps(), ElideTrivialCollectives(), ChunkExperts()):
        each.run(graph, facts)
    adds = [node for node in graph.nodes if node.target is torch.ops.aten.add.Tensor]
    (added,) = [node for node in adds if len(node.all_input_nodes) == 2]
    assert value_of(added).dtype == torch.bfloat16
    assert value_of(graph.results[1]).dtype == torch.float32


def test_adjacent_modules_hand_their_chunks_on():
    graph = cut_stack(count=3, num_chunks=2)
    joined = [node for node in graph.nodes if node.target is torch.ops.aten.cat.default]
    assert [tag_of(node).path for node in joined] == ["layers.2"]


def test_only_the_chosen_modules_are_cut():
    graph = cut_stack(count=3, modules="layers.1")
    assert {tag_of(node).path for node in graph.nodes if tag_of(node).chunk is not None} == {"layers.1"}


def test_running_it_twice_changes_nothing_more():
    graph, facts = capture_stack()
    ChunkExperts().run(graph, facts)
    once = graph.text()
    assert ChunkExperts().run(graph, facts) == "chunked already"
    assert graph.text() == once


def test_a_module_whose_ops_depend_on_the_size_is_refused_with_both_ops():
    with pytest.raises(ConfigError, match=r"getitem.*for the whole and aten.t.default.*for a chunk"):
        capture_stack(Looping)


def test_a_value_over_all_rows_that_is_read_outside_is_refused():
    with pytest.raises(ConfigError, match=r"aten.sum(.|\n)*neither cut along dim 0 nor a parameter's gradient"):
        cut_stack(Leaking)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Noisy, r"layers.0 cannot be cut into chunks at .*rand(.|\n)*drawn in another order"),
        (Talking, r"layers.0 cannot be cut into chunks at .*all_reduce(.|\n)*not known to work for a part"),
        (Crossing, r"layers.0 cannot be cut(.|\n)*is \[8, 8\] for the whole and \[4, 4\] for a chunk"),
    ],
)
def test_what_would_mean_something_else_for_a_part_is_refused(layer, words):
    graph, facts = capture_stack(layer)
    with pytest.raises(ConfigError, match=words):
        ChunkExperts().run(graph, facts)


def test_a_cut_that_hides_no_exchange_is_refused_where_experts_are_spread():
    with pytest.raises(ConfigError, match="exchanges nothing"):
        cut_stack(Plain, mesh=Mesh(dp_shard=2, ep=2))


def capture_overlapped(mesh, **options):
    changes = {f"compile.expert_overlap.{name}": value for name, value in options.items()}
    return capture_small("deepseek_v3", mesh, **{"training.local_batch_size": 4, **changes})


@pytest.mark.long
def test_every_chunk_exchanges_for_itself_and_that_becomes_a_promise():
    graph, facts = capture_overlapped(Mesh(dp_shard=2, tp=2, ep=2), strategy="graph", modules="layers.*")
    before = sum(node.target is ALL_TO_ALL for node in graph.nodes)
    ChunkExperts().run(graph, facts)
    check_graph(graph, facts)
    exchanges = [node for node in graph.nodes if node.target is ALL_TO_ALL]
    assert len(exchanges) == 2 * before
    assert sorted(tag_of(node).chunk for node in exchanges) == [0] * before + [1] * before
    last = next(node for node in reversed(graph.nodes) if is_launch(node) and tag_of(node).chunk == 1)
    assert graph.properties is not None
    wait = next(iter(last.users))
    wait.replace_all_uses_with(last.args[0])
    with pytest.raises(GraphError):
        check_graph(graph, facts)
