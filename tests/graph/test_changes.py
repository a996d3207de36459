"""What changed between two looks at a graph, and that only what could be wrong is checked again."""

from dataclasses import replace

import pytest

from monograph.compat.ops import ATEN
from monograph.graph.changes import count_moved, find_changes, look_at
from monograph.graph.cost import H200, Meter, measure
from monograph.graph.edit import call_before, redirect
from monograph.graph.tags import set_tag, tag_of
from monograph.graph.verify import GraphError, check_graph
from tests.graph.captures import SPREAD, capture_recipe, copy_graph


@pytest.fixture
def step():
    return copy_graph(capture_recipe("llama3_debugmodel", SPREAD)[0])


def test_a_graph_that_nobody_touched_has_not_changed(step):
    assert find_changes(look_at(step), look_at(step)).is_nothing


def test_new_moved_removed_and_altered_nodes_are_told_apart(step):
    before = look_at(step)
    inside = step.module.graph
    first = next(node for node in step.nodes if node.target is ATEN.mm.default)
    copy = call_before(inside, first, ATEN.mm.default, first.args, tag_of(first))
    (reader, *_) = first.users
    redirect(first, copy)
    inside.erase_node(first)
    changes = find_changes(before, look_at(step))
    assert (changes.added, changes.removed, changes.moved) == (1, 1, 0)
    assert copy in changes.altered and reader in changes.altered
    assert not changes.is_order
    assert changes.touched >= changes.altered | set(reader.users)


def test_what_passes_plan_is_no_change_and_where_a_node_comes_from_is_one(step):
    before = look_at(step)
    node = next(node for node in step.nodes if node.op == "call_function")
    set_tag(node, replace(tag_of(node), keep=True, compile="blocks"))
    assert find_changes(before, look_at(step)).is_nothing
    set_tag(node, replace(tag_of(node), path="elsewhere"))
    assert find_changes(before, look_at(step)).altered == {node}


MOVES = [([], 0), ([0, 1, 2], 0), ([1, 2, 0], 1), ([3, 2, 1, 0], 3), ([2, 0, 1, 3], 1)]


@pytest.mark.parametrize(("places", "moved"), MOVES)
def test_moves_are_counted_as_few_as_possible(places, moved):
    assert count_moved(places) == moved


def test_another_order_is_refused_when_a_value_is_read_too_early(step):
    before = look_at(step)
    node = next(node for node in step.nodes if node.target is ATEN.mm.default)
    next(iter(node.users)).append(node)
    changes = find_changes(before, look_at(step))
    assert changes.is_order and changes.moved == 1
    with pytest.raises(GraphError, match="read before it is made"):
        check_graph(step, capture_recipe("llama3_debugmodel", SPREAD)[1], changes)


def test_measuring_again_what_was_touched_gives_the_cost_of_the_whole(step):
    meter = Meter(H200, {})
    meter.measure(step)
    before = look_at(step)
    node = next(node for node in step.nodes if node.target is ATEN.mm.default)
    redirect(node, call_before(step.module.graph, node, ATEN.mm.default, node.args, tag_of(node)))
    again = meter.measure(step, find_changes(before, look_at(step)).touched)
    assert again == measure(step)
    assert again.flops > 0
