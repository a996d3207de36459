"""What changed between two looks at a graph, and that only what could be wrong is checked again."""

from dataclasses import replace

import pytest
import torch

from monograph.compat.ops import ATEN
from monograph.graph.changes import count_moved, find_changes, take_snapshot
from monograph.graph.cost import CostMeter, measure
from monograph.graph.edit import call_before, redirect
from monograph.graph.facts import Facts
from monograph.graph.layouts import find_symbols
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import value_of
from monograph.graph.signature import InputKind, OutputKind
from monograph.graph.tags import set_tag, tag_of
from monograph.graph.verify import GraphError, check_graph
from tests.graph.captures import SPREAD, capture_chunk_nodes, capture_recipe, copy_graph


@pytest.fixture
def step():
    return copy_graph(capture_recipe("llama3_debugmodel", SPREAD)[0])


def test_a_graph_that_nobody_touched_has_not_changed(step):
    assert find_changes(take_snapshot(step), take_snapshot(step)).is_nothing


def test_new_moved_removed_and_altered_nodes_are_told_apart(step):
    before = take_snapshot(step)
    inside = step.module.graph
    first = next(node for node in step.nodes if node.target is ATEN.mm.default)
    copy = call_before(inside, first, ATEN.mm.default, first.args, tag_of(first))
    (reader, *_) = first.users
    redirect(first, copy)
    inside.erase_node(first)
    changes = find_changes(before, take_snapshot(step))
    assert (changes.added, changes.removed, changes.moved) == (1, 1, 0)
    assert copy in changes.altered and reader in changes.altered
    assert not changes.is_nothing
    assert changes.touched >= changes.altered | set(reader.users)


def test_what_passes_plan_is_no_change_and_where_a_node_comes_from_is_one(step):
    before = take_snapshot(step)
    node = next(node for node in step.nodes if node.op == "call_function")
    set_tag(node, replace(tag_of(node), keep=True, compile="blocks"))
    assert find_changes(before, take_snapshot(step)).is_nothing
    set_tag(node, replace(tag_of(node), path="elsewhere"))
    assert find_changes(before, take_snapshot(step)).altered == {node}


MOVES = [([], 0), ([0, 1, 2], 0), ([1, 2, 0], 1), ([3, 2, 1, 0], 3), ([2, 0, 1, 3], 1)]


@pytest.mark.parametrize(("indices", "moved"), MOVES)
def test_moves_are_counted_as_few_as_possible(indices, moved):
    assert count_moved(indices) == moved


def test_another_order_is_refused_when_a_value_is_read_too_early(step):
    before = take_snapshot(step)
    node = next(node for node in step.nodes if node.target is ATEN.mm.default)
    next(iter(node.users)).append(node)
    changes = find_changes(before, take_snapshot(step))
    assert changes.moved == 1 and not changes.altered
    with pytest.raises(GraphError, match="read before it is made"):
        check_graph(step, capture_recipe("llama3_debugmodel", SPREAD)[1], changes)


def test_measuring_again_what_was_touched_gives_the_cost_of_the_whole(step):
    meter = CostMeter(Facts())
    meter.measure(step)
    before = take_snapshot(step)
    node = next(node for node in step.nodes if node.target is ATEN.mm.default)
    first = meter.find_node_costs(step.module.graph, LikelySizes(step.module.graph))
    node.meta["val"] = torch.empty(4096, 4096, device="meta")
    call_before(step.module.graph, node, ATEN.mm.default, node.args, tag_of(node))
    changes = find_changes(before, take_snapshot(step))
    assert meter.measure(step, changes.touched) == measure(step, Facts())
    again = meter.find_node_costs(step.module.graph, LikelySizes(step.module.graph))
    assert again.seconds[node] > first.seconds[node]
    (reader, *_) = [user for user in node.users if user in first.seconds] or [node]
    assert again.seconds[reader] > first.seconds[reader], "whoever reads it reads more"


def refusal(graph, facts, before):
    """What is said of a graph when only what changed since is looked at; it must be what a look at everything says."""
    changes = find_changes(before, take_snapshot(graph))
    assert not changes.is_nothing
    with pytest.raises(GraphError) as found:
        check_graph(graph, facts, changes)
    with pytest.raises(GraphError) as wanted:
        check_graph(graph, facts)
    assert str(found.value) == str(wanted.value)
    return str(found.value)


@pytest.fixture
def chunk_nodes():
    graph, facts = capture_chunk_nodes()
    graph = copy_graph(graph)
    check_graph(graph, facts)
    return graph, facts, take_snapshot(graph)


def test_inputs_of_one_shape_that_changed_places_are_refused(chunk_nodes):
    graph = chunk_nodes[0]
    one, other = [
        node for node, spec in zip(graph.placeholders, graph.inputs, strict=True) if spec.kind is InputKind.STATE
    ]
    one.prepend(other)
    assert "moves the parameter of" in refusal(*chunk_nodes)


def test_names_that_changed_places_are_refused(chunk_nodes):
    graph = chunk_nodes[0]
    first, second, *rest = [spec for spec in graph.outputs if spec.kind is OutputKind.GRADIENT]
    others = [spec for spec in graph.outputs if spec.kind is not OutputKind.GRADIENT]
    graph.outputs = (*others, second, first, *rest)
    assert "the gradient of" in refusal(*chunk_nodes)


def test_other_promises_are_held_against_the_graph(chunk_nodes):
    graph = chunk_nodes[0]
    graph.properties = replace(graph.properties, sums={slot: frozenset() for slot in graph.properties.sums})
    assert "is summed over" in refusal(*chunk_nodes)


def test_nothing_may_stand_behind_the_output(chunk_nodes):
    graph = chunk_nodes[0]
    output = graph.module.graph.output_node()
    with graph.module.graph.inserting_after(output):
        node = graph.module.graph.call_function(ATEN.clone.default, (graph.placeholders[0],))
    node.meta = dict(graph.placeholders[0].meta)
    assert "not its only output" in refusal(*chunk_nodes)


def test_a_node_whose_metadata_was_made_anew_is_looked_at_without_its_stamp(chunk_nodes):
    graph, facts, before = chunk_nodes
    node = next(node for node in graph.nodes if node.op == "call_function")
    node.meta = {"val": value_of(node), "monograph_tag": tag_of(node)}
    check_graph(graph, facts, find_changes(before, take_snapshot(graph)))


def test_costs_of_lists_whose_sizes_are_guessed_are_guessed_again():
    graph, _ = capture_recipe("qwen3_debugmodel_moe", SPREAD)
    graph = copy_graph(graph)
    sizes = {"ep": 2, "tp": 2}
    meter = CostMeter(Facts(group_sizes=sizes))
    meter.measure(graph)
    remembered = [node for node in graph.nodes if node in meter._known]
    assert remembered
    for node in remembered:
        assert not any(find_symbols(value_of(each)) for each in (node, *node.all_input_nodes))
