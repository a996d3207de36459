"""Split sizes reach the host by a copy that waits, and every collective takes its sizes from that copy as data.

A copy that does not wait, followed by code that happens to come later, is a race: it is right until it is not. So the
captured graphs are searched for any way a size could be read too early.
"""

import operator
import os

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from monograph.axes import Group
from monograph.models.config import ExpertsConfig, ResidualSpec
from monograph.parallel.expert import ExchangeDispatch
from monograph.parallel.groups import joined_groups
from monograph.train.layout import plan_run_mesh
from tests.execute.updates import CPU, LAYER, PATIENCE_SECONDS, make_updates, small
from tests.execute.watch import recorded_graphs
from tests.kit.ranks import pool

aten = torch.ops.aten
PICKS = (aten.select.int, aten.slice.Tensor, aten.view.default, aten.unbind.int, operator.getitem)
exchange = torch.ops._c10d_functional.all_to_all_single.default


def trace_origin(node):
    """The tensor a value was picked from."""
    while node.op == "call_function" and node.target in PICKS:
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
    first, other = pool.run(2, describe_on_ranks, configs, timeout_seconds=PATIENCE_SECONDS)
    assert first == other
    return dict(zip(kinds, first, strict=True))


@pytest.mark.long
@pytest.mark.parametrize(("experts", "copies"), [("grouped", 1), ("loop", 2)])
def test_one_tensor_of_sizes_is_read_for_each_exchange_and_one_for_a_loop_over_experts(graphs, experts, copies):
    forward, backward = graphs[experts]
    assert len(set(forward["host_reads"])) == copies
    assert backward["host_reads"] == [], "backward knows the sizes already"


@pytest.mark.long
@pytest.mark.parametrize("experts", ["grouped", "loop"])
def test_no_copy_goes_on_without_waiting(graphs, experts):
    assert [each["not_waiting"] for each in graphs[experts]] == [[], []]


@pytest.mark.long
@pytest.mark.parametrize("experts", ["grouped", "loop"])
def test_rows_travel_by_sizes_that_were_read_and_counts_by_fixed_ones(graphs, experts):
    forward, backward = graphs[experts]
    counts, there, back = ((Group.EP.value, kinds) for kinds in (["fixed"], ["read"], ["read"]))
    assert forward["exchanges"] == [counts, there, back]
    assert backward["exchanges"] == [there, back]


def copy_sizes(load, received, arriving):
    return load.sum() + ExchangeDispatch(ep=2, etp=1).find_sizes(load, received, arriving, rows=4).sent[0]


def run_in_loop(rows, ends):
    residual = ResidualSpec(dim=16, norm_eps=1e-5, init_std=0.02, out_std=0.02)
    with torch.device("meta"):
        experts = ExpertsConfig(backend="loop").build(n_experts=2, hidden_dim=8, residual=residual)
    weights = {name: torch.empty(weight.shape, device=rows.device) for name, weight in experts.named_parameters()}
    return torch.func.functional_call(experts, weights, (rows, ends))


@pytest.mark.parametrize(
    ("function", "shapes"), [(copy_sizes, ((4,), (2, 2), (1, 2, 2))), (run_in_loop, ((6, 16), (2,)))]
)
def test_on_a_gpu_sizes_are_read_from_one_tensor_by_waiting_too(function, shapes):
    """The two places where sizes leave the device, as a GPU would be asked to run them, without having one."""
    with FakeTensorMode(shape_env=ShapeEnv()):
        kinds = [torch.float32 if shape == (6, 16) else torch.int64 for shape in shapes]
        inputs = [torch.empty(shape, dtype=kind, device="cuda") for shape, kind in zip(shapes, kinds, strict=True)]
        found = describe(make_fx(function)(*inputs))
    assert found["not_waiting"] == []
    assert len(set(found["host_reads"])) == 1


def test_a_copy_that_does_not_wait_would_be_found():
    def race(x):
        return x.to("cpu", non_blocking=True).sum()

    with FakeTensorMode(), torch.device("cuda"):
        graph = make_fx(race)(torch.empty(3))
    assert len(describe(graph)["not_waiting"]) == 1
