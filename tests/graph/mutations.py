"""Ways to break a captured step, each one a mistake a pass could make. Every function changes the graph in place.

A mutation picks its place with the given random generator; it returns False where the graph has no such place.
"""

import operator
from dataclasses import replace

import torch

from monograph.annotate import Direction, Role
from monograph.compat import ATEN, EXCHANGE, GATHER, READ_SIZE, REDUCE, SCATTER, WAIT
from monograph.graph.edit import call_after, call_before, infer_value, redirect
from monograph.graph.query import group_of, is_backward, is_compute, is_launch, is_wait, value_of, wait_of
from monograph.graph.signature import OutputKind
from monograph.graph.tags import set_tag, tag_of

MUTATIONS = []


def mutation(function):
    MUTATIONS.append(function)
    return function


def pick(rng, nodes):
    nodes = list(nodes)
    return rng.choice(nodes) if nodes else None


def calls(graph, *targets):
    return [node for node in graph.nodes if node.target in targets]


def launches(graph, role=None):
    return [node for node in graph.nodes if is_launch(node) and (role is None or tag_of(node).role is role)]


def large(graph, facts, role=None):
    return [node for node in launches(graph, role) if facts.group_sizes[group_of(node)] > 1]


def set_args(node, place, value):
    node.args = (*node.args[:place], value, *node.args[place + 1 :])


def bypass(launch):
    """Readers of a transfer read what it was given."""
    redirect(wait_of(launch), launch.args[0])


def gradient_places(graph):
    return [place for place, spec in enumerate(graph.outputs) if spec.kind is OutputKind.GRADIENT]


def set_results(graph, results):
    graph.module.graph.output_node().args = (list(results),)


def layout(node):
    value = value_of(node)
    return value.shape, value.stride(), value.dtype


def pairs_alike(rng, nodes):
    """Two different nodes of the same shape, or None."""
    nodes = list(nodes)
    rng.shuffle(nodes)
    for place, one in enumerate(nodes):
        for other in nodes[place + 1 :]:
            if layout(one) == layout(other):
                return one, other
    return None


@mutation
def drop_a_wait(graph, facts, rng):
    wait = pick(rng, calls(graph, WAIT))
    redirect(wait, wait.args[0])
    graph.module.graph.erase_node(wait)


@mutation
def wait_twice(graph, facts, rng):
    wait = pick(rng, calls(graph, WAIT))
    again = call_after(graph.module.graph, wait, WAIT, wait.args, tag_of(wait))
    redirect(wait, again, users=list(wait.users)[:1])


@mutation
def wait_for_a_wait(graph, facts, rng):
    wait = pick(rng, calls(graph, WAIT))
    users = list(wait.users)
    redirect(wait, call_after(graph.module.graph, wait, WAIT, (wait,), tag_of(wait)), users=users)


@mutation
def launch_before_the_input(graph, facts, rng):
    launch = pick(rng, (node for node in launches(graph) if node.args[0].op == "call_function"))
    launch.args[0].prepend(launch)


@mutation
def wait_after_the_use(graph, facts, rng):
    wait = pick(rng, (node for node in calls(graph, WAIT) if any(is_compute(user) for user in node.users)))
    next(user for user in wait.users if is_compute(user)).append(wait)


@mutation
def talk_to_other_ranks(graph, facts, rng):
    launch = pick(rng, large(graph, facts))
    same_ranks = {"fsdp": "fsdp", "efsdp": "efsdp", "tp": "tp", "ep": "ep"}
    own = same_ranks[group_of(launch).split("_")[0]]
    size = facts.group_sizes[group_of(launch)]
    others = [name for name, count in facts.group_sizes.items() if count == size and name.split("_")[0] != own]
    set_args(launch, len(launch.args) - 1, rng.choice(others))


@mutation
def name_a_native_group(graph, facts, rng):
    launch = pick(rng, launches(graph))
    set_args(launch, len(launch.args) - 1, "5")


@mutation
def count_the_group_wrong(graph, facts, rng):
    launch = pick(rng, (node for node in launches(graph) if node.target in (GATHER, SCATTER)))
    set_args(launch, len(launch.args) - 2, 2 * launch.args[-2])


@mutation
def swap_sent_and_received(graph, facts, rng):
    launch = pick(rng, (node for node in calls(graph, EXCHANGE) if node.args[1] != node.args[2]))
    if launch is None:
        return False
    launch.args = (launch.args[0], launch.args[2], launch.args[1], launch.args[3])


@mutation
def reverse_the_split_sizes(graph, facts, rng):
    launch = pick(rng, (node for node in calls(graph, EXCHANGE) if len(set(node.args[1])) > 1))
    if launch is None:
        return False
    set_args(launch, rng.choice((1, 2)), list(reversed(launch.args[1])))


@mutation
def send_uneven_counts(graph, facts, rng):
    launch = pick(rng, (node for node in calls(graph, EXCHANGE) if isinstance(node.args[1][0], int)))
    if launch is None:
        return False
    first, second = launch.args[1]
    set_args(launch, rng.choice((1, 2)), [first - 1, second + 1])


@mutation
def bake_a_split_size(graph, facts, rng):
    read = pick(rng, (node for node in calls(graph, READ_SIZE) if node.users))
    if read is None:
        return False
    user = next(iter(read.users))
    user.args = torch.fx.node.map_arg(user.args, lambda each: 16 if each is read else each)


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
    scatters = [node for node in launches(graph, Role.GRAD_SCATTER) if node.target is SCATTER]
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
    cast = pick(rng, (node for node in casts if tag_of(node).role in (Role.PARAM_GATHER, Role.GRAD_SCATTER)))
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
def gather_another_parameter(graph, facts, rng):
    gathers = [node for node in launches(graph, Role.PARAM_GATHER)]
    one, other = pairs_alike(rng, (node.args[0] for node in gathers))
    launch = next(node for node in gathers if node.args[0] is max(one, other))
    set_args(launch, 0, min(one, other))


@mutation
def gather_another_parameter_under_its_name(graph, facts, rng):
    gathers = [node for node in launches(graph, Role.PARAM_GATHER)]
    one, other = pairs_alike(rng, (node.args[0] for node in gathers))
    launch = next(node for node in gathers if node.args[0] is max(one, other))
    taken = next(node for node in gathers if node.args[0] is min(one, other))
    set_args(launch, 0, min(one, other))
    for node in (launch, wait_of(launch)):
        set_tag(node, replace(tag_of(node), slot=tag_of(taken).slot))


@mutation
def swap_two_gathered_parameters(graph, facts, rng):
    one, other = pairs_alike(rng, (wait_of(node) for node in launches(graph, Role.PARAM_GATHER)))
    first, second = sorted((one, other))
    readers = [user for user in first.users if second < user], list(second.users)
    redirect(first, second, users=readers[0])
    redirect(second, first, users=readers[1])


@mutation
def drop_a_sum_over_replicas(graph, facts, rng):
    bypass(pick(rng, (node for node in large(graph, facts, Role.GRAD_SCATTER) if node.target is REDUCE)))


@mutation
def sum_a_gradient_twice(graph, facts, rng):
    wait = wait_of(pick(rng, (node for node in large(graph, facts, Role.GRAD_SCATTER) if node.target is REDUCE)))
    users = list(wait.users)
    launch = call_after(graph.module.graph, wait, REDUCE, (wait, *wait.args[0].args[1:]), tag_of(wait))
    redirect(wait, call_after(graph.module.graph, launch, WAIT, (launch,), tag_of(wait)), users=users)


@mutation
def keep_a_slice_instead_of_a_sum(graph, facts, rng):
    launch = pick(rng, (node for node in large(graph, facts, Role.GRAD_SCATTER) if node.target is SCATTER))
    source, rows = launch.args[0], value_of(launch).shape[0]
    part = call_before(graph.module.graph, launch, ATEN.slice.Tensor, (source, 0, 0, rows), tag_of(launch))
    redirect(wait_of(launch), part)


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
def drop_a_transfer_of_a_module(graph, facts, rng):
    found = [node for node in large(graph, facts) if tag_of(node).path]
    bypass(pick(rng, (node for node in found if node.target is REDUCE)))


@mutation
def reduce_by_another_operation(graph, facts, rng):
    launch = pick(rng, (node for node in large(graph, facts) if node.target in (REDUCE, SCATTER)))
    set_args(launch, 1, {"sum": "avg", "max": "sum"}[launch.args[1]])


@mutation
def name_no_parameter(graph, facts, rng):
    launch = pick(rng, launches(graph, Role.PARAM_GATHER) + launches(graph, Role.GRAD_SCATTER))
    set_tag(launch, replace(tag_of(launch), slot=rng.choice(("", "layers.9.attention.wq.weight"))))


@mutation
def draw_random_numbers(graph, facts, rng):
    node = pick(rng, calls(graph, ATEN.mm.default))
    users = list(node.users)
    drop = call_after(graph.module.graph, node, ATEN.native_dropout.default, (node, 0.1, True), tag_of(node))
    redirect(node, call_after(graph.module.graph, drop, operator.getitem, (drop, 0), tag_of(node)), users=users)


@mutation
def read_a_launch_next_to_its_wait(graph, facts, rng):
    wait = pick(rng, (node for node in graph.nodes if is_wait(node) and len(node.users) > 0))
    redirect(wait, wait.args[0], users=list(wait.users)[:1])
