"""Split sizes reach the host by a copy that waits, and every transfer takes its sizes from that copy as data.

A copy that does not wait, followed by code that happens to come later, is a race: it is right until it is not. So the
captured graphs are searched for any way a size could be read too early.
"""

import os

import pytest
import torch

from monograph.axes import Group
from monograph.parallel.groups import joined_groups
from monograph.train.layout import plan_run_mesh
from tests.execute.updates import CPU, LAYER, make_updates, small
from tests.execute.watch import recorded_graphs
from tests.kit.ranks import pool

aten = torch.ops.aten
exchange = torch.ops._c10d_functional.all_to_all_single.default


def trace_origin(node):
    """The tensor a value was picked from."""
    while node.op == "call_function" and node.target in (aten.select.int, aten.slice.Tensor, aten.view.default):
        node = node.args[0]
    return node.name


def describe(graph):
    """What a graph does on its way from device to host, in plain words that can leave the process."""
    sizes = set()
    found = {"host_reads": [], "not_waiting": [], "exchanges": []}
    for node in graph.graph.nodes:
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.SymInt):
            sizes.add(node)
        if node.op != "call_function":
            continue
        if node.target is aten._local_scalar_dense.default:
            sizes.add(node)
            found["host_reads"].append(trace_origin(node.args[0]))
        elif not isinstance(node.target, torch._ops.OpOverload) and sizes.issuperset(node.all_input_nodes):
            sizes.add(node)  # sums of sizes
        schema = getattr(node.target, "_schema", None)
        names = [argument.name for argument in schema.arguments] if schema else []
        if dict(zip(names, node.args, strict=False)).get("non_blocking") or node.kwargs.get("non_blocking"):
            found["not_waiting"].append(str(node))
        if node.target is exchange:
            splits = [size for split in node.args[1:3] for size in split]
            kinds = {"fixed" if isinstance(s, int) else "read" if s in sizes else "unknown" for s in splits}
            found["exchanges"].append((str(node.args[3]), sorted(kinds)))
    return found


def describe_on_ranks(configs):
    """As one of the ranks: the graphs of every config, described."""
    with joined_groups(plan_run_mesh(configs[0], int(os.environ["WORLD_SIZE"])), CPU) as groups:
        found = []
        for config in configs:
            with recorded_graphs() as graphs:
                make_updates(config, groups, routings=[()])
            found.append([describe(graph) for graph in graphs])
        return found


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """Experts -> forward and backward graph of a block with experts on two ranks."""
    folder = tmp_path_factory.mktemp("runs")
    kinds = ("grouped", "loop")
    configs = [small("qwen3_moe", folder, LAYER, experts=kind, ep=2) for kind in kinds]
    first, other = pool.run(2, describe_on_ranks, configs)
    assert first == other
    return dict(zip(kinds, first, strict=True))


@pytest.mark.parametrize(("experts", "copies"), [("grouped", 1), ("loop", 2)])
def test_one_tensor_of_sizes_is_read_for_each_exchange_and_one_for_a_loop_over_experts(graphs, experts, copies):
    forward, backward = graphs[experts]
    assert len(set(forward["host_reads"])) == copies
    assert backward["host_reads"] == [], "backward knows the sizes already"


@pytest.mark.parametrize("experts", ["grouped", "loop"])
def test_no_copy_goes_on_without_waiting(graphs, experts):
    assert [each["not_waiting"] for each in graphs[experts]] == [[], []]


@pytest.mark.parametrize("experts", ["grouped", "loop"])
def test_rows_travel_by_sizes_that_were_read_and_counts_by_fixed_ones(graphs, experts):
    forward, backward = graphs[experts]
    counts, there, back = ((Group.EP.value, kinds) for kinds in (["fixed"], ["read"], ["read"]))
    assert forward["exchanges"] == [counts, there, back]
    assert backward["exchanges"] == [there, back]


def test_a_copy_that_does_not_wait_would_be_found():
    def race(x):
        return x.to(torch.float64, non_blocking=True).sum()

    graph = torch.fx.experimental.proxy_tensor.make_fx(race)(torch.ones(3))
    assert len(describe(graph)["not_waiting"]) == 1
