"""Mistakes with values: gradients that are lost or mixed up, wrong shapes and dtypes, writes, rank literals."""

import operator
from dataclasses import replace

import torch

from monograph.annotate import Direction, Role
from monograph.compat.ops import ATEN, REDUCE_SCATTER
from monograph.graph.edit import call_after, call_before, infer_value, redirect
from monograph.graph.query import is_backward, is_compute, value_of
from monograph.graph.tags import set_tag, tag_of
from tests.graph.breaking import (
    Mutations,
    calls,
    gradient_places,
    launches,
    layout,
    pairs_alike,
    pick,
    set_args,
    set_results,
)

mutation = Mutations()


@mutation
def write_through_an_alias(graph, facts, rng):
    view = pick(rng, calls(graph, ATEN.view.default, ATEN.t.default))
    users = list(view.users)
    redirect(view, call_after(graph.module.graph, view, ATEN.add_.Tensor, (view, 1), tag_of(view)), users=users)


@mutation
def write_into_a_parameter(graph, facts, rng):
    last = graph.module.graph.output_node()
    state = rng.choice(graph.placeholders[:4])
    call_before(graph.module.graph, last, ATEN.mul_.Tensor, (state, 0.5), tag_of(state))


@mutation
def lose_a_gradient_to_zeros(graph, facts, rng):
    results, place = graph.results, rng.choice(gradient_places(graph))
    old = results[place]
    maker = rng.choice((ATEN.zeros_like.default, ATEN.ones_like.default))
    results[place] = call_after(graph.module.graph, old, maker, (old,), tag_of(old))
    set_results(graph, results)


@mutation
def return_one_gradient_twice(graph, facts, rng):
    results = graph.results
    one, other = rng.sample(gradient_places(graph), 2)
    results[one] = results[other]
    set_results(graph, results)


@mutation
def copy_another_gradient(graph, facts, rng):
    results = graph.results
    one, other = pairs_alike(rng, (results[place] for place in gradient_places(graph)))
    copied = call_after(graph.module.graph, other, ATEN.clone.default, (other,), tag_of(one))
    set_results(graph, [copied if each is one else each for each in results])


@mutation
def swap_two_gradients(graph, facts, rng):
    results = graph.results
    one, other = pairs_alike(rng, (results[place] for place in gradient_places(graph)))
    set_results(graph, [{one: other, other: one}.get(each, each) for each in results])


@mutation
def swap_two_gradients_before_their_sums(graph, facts, rng):
    scatters = [node for node in launches(graph, Role.GRAD_REDUCE_SCATTER) if node.target is REDUCE_SCATTER]
    first = pick(rng, scatters)
    ready = (node for node in scatters if node is not first and max(node.args[0], first.args[0]) < min(node, first))
    second = pick(rng, (node for node in ready if layout(node.args[0]) == layout(first.args[0])))
    if second is None:
        return False
    one, other = first.args[0], second.args[0]
    set_args(first, 0, other)
    set_args(second, 0, one)


@mutation
def return_a_forward_value_as_gradient(graph, facts, rng):
    results, place = graph.results, rng.choice(gradient_places(graph))
    state = graph.placeholders[[spec.name for spec in graph.inputs].index(graph.outputs[place].name)]
    anchor = next(node for node in graph.nodes if is_backward(node) and is_compute(node))
    results[place] = call_before(graph.module.graph, anchor, ATEN.clone.default, (state,), tag_of(anchor))
    set_results(graph, results)


@mutation
def drop_an_output(graph, facts, rng):
    results = graph.results
    del results[rng.choice(gradient_places(graph))]
    set_results(graph, results)


@mutation
def use_before_definition(graph, facts, rng):
    node = pick(
        rng, (node for node in graph.nodes if is_compute(node) and node.users and is_compute(next(iter(node.users))))
    )
    min(node.users).append(node)


@mutation
def remove_a_tag(graph, facts, rng):
    node = pick(rng, (node for node in graph.nodes if is_compute(node)))
    del node.meta["monograph_tag"]


@mutation
def hide_who_made_a_node(graph, facts, rng):
    node = pick(rng, (node for node in graph.nodes if is_compute(node)))
    set_tag(node, replace(tag_of(node), made_by=""))


@mutation
def cast_to_another_dtype(graph, facts, rng):
    cast = pick(rng, (node for node in calls(graph, ATEN._to_copy.default) if node.kwargs.get("dtype")))
    cast.kwargs = dict(cast.kwargs) | {"dtype": torch.float16}


@mutation
def cast_to_another_dtype_and_say_so(graph, facts, rng):
    cast = pick(rng, (node for node in calls(graph, ATEN._to_copy.default) if node.kwargs.get("dtype")))
    cast.kwargs = dict(cast.kwargs) | {"dtype": torch.float16}
    cast.meta["val"] = infer_value(graph.module.graph, cast)


@mutation
def drop_a_cast(graph, facts, rng):
    casts = [node for node in calls(graph, ATEN._to_copy.default) if value_of(node).is_floating_point()]
    cast = pick(rng, (node for node in casts if tag_of(node).role in (Role.PARAM_ALL_GATHER, Role.GRAD_REDUCE_SCATTER)))
    if cast is None:
        return False
    redirect(cast, cast.args[0])


@mutation
def view_as_another_shape(graph, facts, rng):
    view = pick(rng, (node for node in calls(graph, ATEN.view.default) if len(set(node.args[1])) > 1))
    set_args(view, 1, list(reversed(view.args[1])))


@mutation
def bake_a_rank(graph, facts, rng):
    place = pick(rng, (node for node in calls(graph, ATEN.select.int) if node.args[0] in graph.placeholders))
    users = list(place.users)
    literal = {"dtype": torch.int64, "device": torch.device("cpu")}
    constant = call_after(graph.module.graph, place, ATEN.scalar_tensor.default, (1,), tag_of(place), **literal)
    redirect(place, constant, users=users)


@mutation
def bake_a_device(graph, facts, rng):
    node = pick(rng, (node for node in graph.nodes if "device" in node.kwargs))
    node.kwargs = dict(node.kwargs) | {"device": torch.device("cpu", 3)}


@mutation
def let_forward_read_backward(graph, facts, rng):
    backward = pick(rng, (node for node in graph.nodes if is_backward(node) and is_compute(node) and node.users))
    reader = pick(rng, (user for user in backward.users if is_compute(user)))
    if reader is None:
        return False
    set_tag(reader, replace(tag_of(reader), direction=Direction.FORWARD))


@mutation
def scale_a_summed_gradient(graph, facts, rng):
    results, place = graph.results, rng.choice(gradient_places(graph))
    old = results[place]
    results[place] = call_after(graph.module.graph, old, ATEN.mul.Tensor, (old, 0.5), tag_of(old))
    set_results(graph, results)


@mutation
def double_a_gradient(graph, facts, rng):
    results, place = graph.results, rng.choice(gradient_places(graph))
    old = results[place]
    results[place] = call_after(graph.module.graph, old, ATEN.add.Tensor, (old, old), tag_of(old))
    set_results(graph, results)


@mutation
def forget_one_use_of_a_tied_parameter(graph, facts, rng):
    results = graph.results
    place = next((place for place in gradient_places(graph) if results[place].target is ATEN.add.Tensor), None)
    if place is None:
        return False
    results[place] = rng.choice(results[place].args[:2])
    set_results(graph, results)


@mutation
def draw_random_numbers(graph, facts, rng):
    node = pick(rng, calls(graph, ATEN.mm.default))
    users = list(node.users)
    drop = call_after(graph.module.graph, node, ATEN.native_dropout.default, (node, 0.1, True), tag_of(node))
    redirect(node, call_after(graph.module.graph, drop, operator.getitem, (drop, 0), tag_of(node)), users=users)
