"""Mistakes with collectives: in their order, their groups, their sizes, and in what they move."""

from dataclasses import replace

import torch

from monograph.annotate import Role
from monograph.compat.ops import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, ATEN, READ_SIZE, REDUCE_SCATTER, WAIT_TENSOR
from monograph.graph.edit import call_after, call_before, redirect
from monograph.graph.invariants import find_gradients
from monograph.graph.query import group_of, is_compute, is_wait, value_of, wait_of
from monograph.graph.tags import set_tag, tag_of
from monograph.kernels.embedding_rows import ADD_EMBEDDING_ROWS
from tests.graph.breaking import (
    Mutations,
    bypass,
    calls,
    large,
    launches,
    pairs_alike,
    pick,
    set_args,
)

mutation = Mutations()


@mutation
def drop_a_wait(graph, facts, rng):
    wait = pick(rng, calls(graph, WAIT_TENSOR))
    redirect(wait, wait.args[0])
    graph.module.graph.erase_node(wait)


@mutation
def wait_twice(graph, facts, rng):
    wait = pick(rng, calls(graph, WAIT_TENSOR))
    again = call_after(graph.module.graph, wait, WAIT_TENSOR, wait.args, tag_of(wait))
    redirect(wait, again, users=list(wait.users)[:1])


@mutation
def wait_for_a_wait(graph, facts, rng):
    wait = pick(rng, calls(graph, WAIT_TENSOR))
    users = list(wait.users)
    redirect(wait, call_after(graph.module.graph, wait, WAIT_TENSOR, (wait,), tag_of(wait)), users=users)


@mutation
def launch_before_the_input(graph, facts, rng):
    launch = pick(rng, (node for node in launches(graph) if node.args[0].op == "call_function"))
    launch.args[0].prepend(launch)


@mutation
def wait_after_the_use(graph, facts, rng):
    wait = pick(rng, (node for node in calls(graph, WAIT_TENSOR) if any(is_compute(user) for user in node.users)))
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
    launch = pick(rng, (node for node in launches(graph) if node.target in (ALL_GATHER, REDUCE_SCATTER)))
    set_args(launch, len(launch.args) - 2, 2 * launch.args[-2])


@mutation
def swap_sent_and_received(graph, facts, rng):
    launch = pick(rng, (node for node in calls(graph, ALL_TO_ALL) if node.args[1] != node.args[2]))
    if launch is None:
        return False
    launch.args = (launch.args[0], launch.args[2], launch.args[1], launch.args[3])


@mutation
def reverse_the_split_sizes(graph, facts, rng):
    launch = pick(rng, (node for node in calls(graph, ALL_TO_ALL) if len(set(node.args[1])) > 1))
    if launch is None:
        return False
    set_args(launch, rng.choice((1, 2)), list(reversed(launch.args[1])))


@mutation
def send_uneven_counts(graph, facts, rng):
    launch = pick(rng, (node for node in calls(graph, ALL_TO_ALL) if isinstance(node.args[1][0], int)))
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
def gather_another_parameter(graph, facts, rng):
    gathers = [node for node in launches(graph, Role.PARAM_ALL_GATHER)]
    one, other = pairs_alike(rng, (node.args[0] for node in gathers))
    launch = next(node for node in gathers if node.args[0] is max(one, other))
    set_args(launch, 0, min(one, other))


@mutation
def gather_another_parameter_under_its_name(graph, facts, rng):
    gathers = [node for node in launches(graph, Role.PARAM_ALL_GATHER)]
    one, other = pairs_alike(rng, (node.args[0] for node in gathers))
    launch = next(node for node in gathers if node.args[0] is max(one, other))
    taken = next(node for node in gathers if node.args[0] is min(one, other))
    set_args(launch, 0, min(one, other))
    for node in (launch, wait_of(launch)):
        set_tag(node, replace(tag_of(node), slot=tag_of(taken).slot))


@mutation
def swap_two_gathered_parameters(graph, facts, rng):
    one, other = pairs_alike(rng, (wait_of(node) for node in launches(graph, Role.PARAM_ALL_GATHER)))
    first, second = sorted((one, other))
    readers = [user for user in first.users if second < user], list(second.users)
    redirect(first, second, users=readers[0])
    redirect(second, first, users=readers[1])


@mutation
def drop_a_sum_over_replicas(graph, facts, rng):
    bypass(pick(rng, (node for node in large(graph, facts, Role.GRAD_REDUCE_SCATTER) if node.target is ALL_REDUCE)))


@mutation
def sum_a_gradient_twice(graph, facts, rng):
    wait = wait_of(
        pick(rng, (node for node in large(graph, facts, Role.GRAD_REDUCE_SCATTER) if node.target is ALL_REDUCE))
    )
    users = list(wait.users)
    launch = call_after(graph.module.graph, wait, ALL_REDUCE, (wait, *wait.args[0].args[1:]), tag_of(wait))
    redirect(wait, call_after(graph.module.graph, launch, WAIT_TENSOR, (launch,), tag_of(wait)), users=users)


@mutation
def keep_a_slice_instead_of_a_sum(graph, facts, rng):
    launch = pick(
        rng, (node for node in large(graph, facts, Role.GRAD_REDUCE_SCATTER) if node.target is REDUCE_SCATTER)
    )
    source, rows = launch.args[0], value_of(launch).shape[0]
    part = call_before(graph.module.graph, launch, ATEN.slice.Tensor, (source, 0, 0, rows), tag_of(launch))
    redirect(wait_of(launch), part)


@mutation
def drop_a_transfer_of_a_module(graph, facts, rng):
    found = [node for node in large(graph, facts) if tag_of(node).path]
    bypass(pick(rng, (node for node in found if node.target is ALL_REDUCE)))


@mutation
def reduce_by_another_operation(graph, facts, rng):
    launch = pick(rng, (node for node in large(graph, facts) if node.target in (ALL_REDUCE, REDUCE_SCATTER)))
    set_args(launch, 1, {"sum": "avg", "max": "sum"}[launch.args[1]])


@mutation
def name_no_parameter(graph, facts, rng):
    launch = pick(rng, launches(graph, Role.PARAM_ALL_GATHER) + launches(graph, Role.GRAD_REDUCE_SCATTER))
    set_tag(launch, replace(tag_of(launch), slot=rng.choice(("", "layers.9.attention.wq.weight"))))


@mutation
def read_a_launch_next_to_its_wait(graph, facts, rng):
    wait = pick(rng, (node for node in graph.nodes if is_wait(node) and len(node.users) > 0))
    redirect(wait, wait.args[0], users=list(wait.users)[:1])


@mutation
def add_embedding_rows_of_one_rank_to_the_sum_over_ranks(graph, facts, rng):
    rows = pick(rng, calls(graph, ATEN.embedding_dense_backward.default))
    sums = [node for slot, node in find_gradients(graph) if slot == tag_of(rows).gradient_of]
    if not sums or sums[0].target is not ATEN.add.Tensor:
        return False  # nothing else is added to the embedding's gradient
    total, tag = sums[0], replace(tag_of(rows), made_by="a mutation")
    args = total.args[0], *rows.args[:2]
    redirect(total, call_before(graph.module.graph, total, ADD_EMBEDDING_ROWS, args, tag))
    return True
