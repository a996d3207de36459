"""The step's traced text knows no rank: it is the same wherever it is traced, and a large world needs no machines."""

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from monograph.axes import Group
from monograph.capture.step import buffers_of, make_step
from monograph.parallel.apply import parallelize
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import build_table
from monograph.train.build_model import build_model
from tests.kit.tiny import tiny

CPU = torch.device("cpu")
EIGHT = Mesh(dp_shard=4, tp=2, ep=4)
REGIONS = {"dispatch", "compute", "combine"}


def trace(config, mesh: Mesh, rank: int) -> torch.fx.Graph:
    """The graph of one step as `rank` of the mesh traces it."""
    with fake_groups(mesh, rank, CPU) as groups:
        model = build_model(config, CPU)
        table = build_table(model, model.parallel_plan(), mesh)
        coords = groups.coords()
        parallelize(model, model.parallel_plan(), mesh, coords)
        step = make_step(model, table, compute_dtype=torch.float32, reduce_dtype=torch.float32)
        state = {slot.name: torch.empty(slot.local_shape, requires_grad=True) for slot in table}
        tokens = torch.zeros(1, config.training.seq_len, dtype=torch.int64)
        batch = {"tokens": tokens, "labels": tokens.clone()}
        scalars = {name: torch.tensor(32) for name in model.normalizers}
        mode = FakeTensorMode(shape_env=ShapeEnv())
        real = (state, buffers_of(model), batch, coords, scalars)
        fake = pytree.tree_map(lambda t: mode.from_tensor(t, static_shapes=True), real)
        with mode, torch.fx.traceback.preserve_node_meta(), torch.autograd.set_multithreading_enabled(False):
            return make_fx(lambda *args: tuple(pytree.tree_leaves(step(*args))))(*fake).graph


def one_block(model: str, tmp_path):
    layers = {"model.n_layers": 2, "model.n_dense_layers": 1} if model == "deepseek_v3" else {"model.n_layers": 1}
    return tiny(model, tmp_path, layers)


def text(graph: torch.fx.Graph) -> str:
    lines = []
    for node in graph.nodes:
        value = node.meta.get("val")
        shape = tuple(map(str, value.shape)) if isinstance(value, torch.Tensor) else value
        lines.append(f"{node.format_node()} {shape}")
    return "\n".join(lines)


@pytest.mark.parametrize("model", [pytest.param("deepseek_v3", marks=pytest.mark.long), "qwen3"])
def test_two_ranks_trace_the_same_text(model, tmp_path):
    mesh = EIGHT if model == "deepseek_v3" else Mesh(dp_shard=4, tp=2)
    config = one_block(model, tmp_path)
    graphs = [trace(config, mesh, rank) for rank in (0, 5)]
    assert text(graphs[0]) == text(graphs[1])
    names = {arg for node in graphs[0].nodes for arg in node.args if isinstance(arg, str)}
    groups = {group.value for group in Group}
    assert names & groups >= {"fsdp_gather", "fsdp_scatter", "tp", "tp_grads"}
    assert names <= groups | {"sum", "max"}, "collectives are addressed by logical names only"


@pytest.mark.long
def test_a_world_of_1024_ranks_is_traced_in_one_process_as_quickly_as_one_of_8(tmp_path):
    config = one_block("deepseek_v3", tmp_path)
    changed = config.replace(model=config.model.replace(moe=config.model.moe.replace(n_experts=64)))
    large = trace(changed, Mesh(dp_replicate=4, dp_shard=128, tp=2, ep=64), 777)
    small = trace(config, Mesh(dp_replicate=2, dp_shard=2, tp=2, ep=4), 5)
    calls = [[node.target for node in graph.nodes if node.op == "call_function"] for graph in (large, small)]
    collectives = [[str(target) for target in each if "_c10d_functional" in str(target)] for each in calls]
    assert collectives[0] == collectives[1] and len(collectives[0]) > 50


def test_regions_of_the_exchange_are_annotated_on_their_nodes(tmp_path):
    graph = trace(one_block("qwen3_moe", tmp_path), Mesh(dp_shard=2, ep=2), 1)
    found = {region for node in graph.nodes for region in node.meta.get("custom", {}).values()}
    assert found >= REGIONS
