"""Every rule of the checker: a graph that breaks it is refused by a message that names the node, others pass."""

import random
from dataclasses import replace

import pytest
import torch
from torch import fx

from monograph.annotate import Direction
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, ATEN, READ_SIZE, REDUCE_SCATTER, WAIT_TENSOR
from monograph.graph import verify_values
from monograph.graph.edit import call_after, redirect
from monograph.graph.query import is_random, wait_of
from monograph.graph.tags import set_tag, tag_of
from monograph.graph.verify import GraphError, check_graph
from monograph.graph.verify_values import trust_values
from monograph.kernels.attention import ATTENTION
from monograph.parallel.mesh import Mesh
from monograph.passes.clean.dedupe_all_gathers import DedupeAllGathers
from monograph.passes.clean.remove_no_ops import RemoveNoOps
from monograph.passes.comm.bucket_collectives import BucketCollectives
from monograph.passes.comm.elide_trivial_collectives import ElideTrivialCollectives
from tests.graph.captures import SPREAD, capture_chunk_nodes, capture_recipe, copy_graph
from tests.graph.mutations_of_values import swap_two_gradients
from tests.kit.by_hand import ByHand


@pytest.fixture(scope="module")
def chunk_nodes():
    return capture_chunk_nodes()


@pytest.fixture(scope="module")
def experts():
    return capture_recipe("qwen3_debugmodel_moe", SPREAD)


def first(graph, target, index=0):
    return [node for node in graph.nodes if node.target is target][index]


def insert(graph, anchor, target, *args, **facts):
    """A new node that reads another one, in front of all of its readers."""
    users = list(anchor.users)
    tag = replace(tag_of(anchor), made_by="a_pass", **facts)
    node = call_after(graph.module.graph, anchor, target, (anchor, *args), tag)
    redirect(anchor, node, users=users)
    return node


def give(node, index, value):
    node.args = (*node.args[:index], value, *node.args[index + 1 :])


def read_too_early(graph):
    first(graph, ATEN.sum.default).prepend(first(graph, ATEN.mm.default, 1))
    first(graph, ATEN.mm.default).prepend(first(graph, ATEN.mm.default, 1))


def turn_inputs_around(graph):
    graph.placeholders[-1].append(graph.placeholders[-2])


def move_a_node_before_an_input(graph):
    graph.placeholders[-1].prepend(first(graph, ALL_GATHER))


def return_less(graph):
    graph.module.graph.output_node().args = (graph.results[:-1],)


def return_a_double(graph):
    loss, *rest = graph.results
    double = insert(graph, loss, ATEN.expand.default, [2])
    graph.module.graph.output_node().args = ([double, *rest],)


def drop_the_wait(graph):
    wait = first(graph, WAIT_TENSOR)
    redirect(wait, wait.args[0])
    graph.module.graph.erase_node(wait)


def wait_for_nothing(graph):
    insert(graph, first(graph, ATEN.mm.default), WAIT_TENSOR)


def lose_the_direction(graph):
    node = first(graph, ATEN.mm.default, 3)
    set_tag(node, replace(tag_of(node), direction=Direction.FORWARD))


def lose_the_maker(graph):
    node = first(graph, ATEN.mm.default)
    set_tag(node, replace(tag_of(node), made_by=""))


def lose_the_value(graph):
    node = insert(graph, first(graph, ATEN.mm.default), ATEN.neg.default)
    del node.meta["val"]


def hold_a_tensor(graph):
    graph.module.register_buffer("constant", torch.ones(2, 4))
    mm = first(graph, ATEN.mm.default)
    with graph.module.graph.inserting_before(mm):
        node = graph.module.graph.get_attr("constant")
    set_tag(node, tag_of(mm))


def hide_a_transfer_in_a_branch(graph):
    inner = fx.Graph()
    inner.output(inner.call_function(ALL_REDUCE, (inner.placeholder("x"), "sum", "tp")))
    graph.module.branch = fx.GraphModule({}, inner)
    mm = first(graph, ATEN.mm.default)
    with graph.module.graph.inserting_before(mm):
        node = graph.module.graph.get_attr("branch")
    set_tag(node, tag_of(mm))


RULES = {
    "read before it is made": read_too_early,
    "the input batch/x is": turn_inputs_around,
    "stands before an input": move_a_node_before_an_input,
    "returns 2 values and has names for 3": return_less,
    "the loss is": return_a_double,
    "waited for 0 times": drop_the_wait,
    "something that is not a collective": wait_for_nothing,
    "there is no group 'tpp'": lambda graph: give(first(graph, ALL_REDUCE), 2, "tpp"),
    "has 3 ranks": lambda graph: give(first(graph, ALL_GATHER), 1, 3),
    "has no tag": lambda graph: first(graph, ATEN.mm.default).meta.pop("monograph_tag"),
    "which belongs to backward": lose_the_direction,
    "which pass made it": lose_the_maker,
    "has no value": lose_the_value,
    "writes into its argument": lambda graph: insert(graph, first(graph, ATEN.t.default), ATEN.add_.Tensor, 1),
    "draws random numbers": lambda graph: insert(graph, first(graph, ATEN.mm.default), ATEN.bernoulli.p, 0.5),
    "an op does not accept": lambda graph: give(first(graph, ATEN.mm.default, 1), 1, first(graph, ATEN.mm.default)),
    "is not what its op yields": lambda graph: give(first(graph, ATEN.expand.default), 1, [4, 4]),
    "holds a tensor's numbers": hold_a_tensor,
    "inside of a branch": hide_a_transfer_in_a_branch,
    "a.weight is used after a gather from tp": lambda graph: give(first(graph, ALL_GATHER), 2, "tp"),
    "moves the parameter of b.weight": lambda graph: give(first(graph, ALL_GATHER), 0, graph.placeholders[1]),
    "combined by something else than a sum": lambda graph: give(first(graph, REDUCE_SCATTER), 1, "avg"),
    "is summed over tp_grads twice": lambda graph: give(first(graph, ALL_REDUCE, 1), 2, "tp_grads"),
    "shift no longer reads": lambda graph: give(first(graph, ATEN.add.Tensor), 1, 1),
}


@pytest.mark.parametrize("message", RULES)
def test_a_broken_rule_is_refused_by_name(chunk_nodes, message):
    graph, facts = copy_graph(chunk_nodes[0]), chunk_nodes[1]
    check_graph(graph, facts)
    RULES[message](graph)
    with pytest.raises(GraphError) as refused:
        check_graph(graph, facts)
    assert message in refused.value.what
    assert refused.value.why
    assert "%" in refused.value.what or "values and has names" in refused.value.what


def test_an_exchange_must_fit_on_both_ends(experts):
    for splits, message in (([2, 6], "fixed sizes"), ([4, 4, 4], "has 3 split sizes"), ([3, 3], "sends 6")):
        graph, facts = copy_graph(experts[0]), experts[1]
        launch = first(graph, ALL_TO_ALL)
        launch.args = (launch.args[0], splits, splits, launch.args[3])
        with pytest.raises(GraphError, match=message):
            check_graph(graph, facts)


def test_a_size_must_be_read_before_it_shapes_anything(experts):
    graph, facts = copy_graph(experts[0]), experts[1]
    read = first(graph, READ_SIZE)
    wait = wait_of(first(graph, ALL_TO_ALL, 1))
    empty = call_after(graph.module.graph, read.prev, ATEN.zeros.default, ([2],), tag_of(read))
    empty.meta["val"] = wait.meta["val"]
    trust_values(graph)
    with pytest.raises(GraphError, match="nothing before it has read from data"):
        check_graph(graph, facts)


@pytest.mark.parametrize(
    ("recipe", "mesh"),
    [
        ("llama3_debugmodel", Mesh()),
        ("qwen3_debugmodel", Mesh()),
        ("qwen3_debugmodel_moe", SPREAD),
        ("deepseek_v3_debugmodel", SPREAD),
        pytest.param("llama3_debugmodel", SPREAD, marks=pytest.mark.long),
        pytest.param("qwen3_debugmodel", SPREAD, marks=pytest.mark.long),
        pytest.param("qwen3_debugmodel_moe", Mesh(), marks=pytest.mark.long),
        pytest.param("deepseek_v3_debugmodel", Mesh(), marks=pytest.mark.long),
    ],
)
def test_captures_of_every_model_are_accepted(recipe, mesh):
    graph, facts = capture_recipe(recipe, mesh)
    check_graph(graph, facts)


def test_a_capture_whose_values_are_all_computed_again_is_accepted(experts):
    graph, facts = copy_graph(experts[0]), experts[1]
    for node in graph.nodes:
        del node.meta["monograph_checked"]
    check_graph(graph, facts)


def test_only_what_changed_is_computed_again(experts, monkeypatch):
    graph, facts = copy_graph(experts[0]), experts[1]
    for node in graph.nodes:
        del node.meta["monograph_checked"]
    computed = []
    honest = verify_values.find_layout
    monkeypatch.setattr(verify_values, "find_layout", lambda value: computed.append(value) or honest(value))
    counts = []
    for _ in range(2):
        computed.clear()
        check_graph(graph, facts)
        counts.append(len(computed))
    assert counts[0] > 100 and counts[1] == 0


@pytest.mark.parametrize("mesh", [Mesh(), SPREAD], ids=["alone", "spread"])
def test_gradients_are_told_apart_after_their_transfers_were_joined_or_removed(mesh):
    graph, facts = capture_recipe("qwen3_debugmodel_moe", mesh)
    graph = copy_graph(graph)
    for each in (RemoveNoOps(), DedupeAllGathers(), ElideTrivialCollectives(), BucketCollectives()):
        if not each.skip(facts):
            each.run(graph, facts)
        check_graph(graph, facts)
    mutant = copy_graph(graph)
    swap_two_gradients(mutant, facts, random.Random(0))
    with pytest.raises(GraphError, match="gradient"):
        check_graph(mutant, facts)


def test_attention_without_dropout_is_not_random(experts):
    assert not is_random(first(experts[0], ATTENTION))
    hand = ByHand()
    q = hand.input("q", 1, 2, 4, 8)
    target = ATEN._scaled_dot_product_flash_attention_for_cpu.default
    assert not is_random(hand.graph.call_function(target, (q, q, q, 0.0)))
    assert is_random(hand.graph.call_function(target, (q, q, q, 0.1)))


def test_a_compiled_region_is_taken_at_its_word(chunk_nodes):
    graph, facts = copy_graph(chunk_nodes[0]), chunk_nodes[1]
    mm = first(graph, ATEN.mm.default)
    graph.module.region = torch.nn.Identity()
    with graph.module.graph.inserting_before(mm):
        region = graph.module.graph.call_module("region", mm.args)
    region.meta["val"] = mm.meta["val"]
    set_tag(region, replace(tag_of(mm), made_by="compile_regions"))
    redirect(mm, region)
    graph.module.graph.erase_node(mm)
    check_graph(graph, facts)


def test_a_wait_after_the_last_reader_of_a_size_is_no_problem(experts):
    graph, facts = experts
    sizes = [node for node in graph.nodes if node.target is ATEN.sym_size.int]
    assert any(node.args[0].target is ALL_TO_ALL for node in sizes), "sizes of a collective are known before it ends"
    assert wait_of(sizes[0].args[0])
    check_graph(graph, facts)
