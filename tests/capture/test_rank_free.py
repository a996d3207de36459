"""The traced step says nothing about who runs it: the same text on every rank of a mesh, for meshes of any size."""

import re

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from monograph.axes import COORDS, Group
from monograph.capture.step import buffers_of, make_step
from monograph.models.config import DecoderConfig
from monograph.parallel.apply import parallelize
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import build_table
from monograph.recipes.catalog import load_recipe
from monograph.train.build_model import build_model

CPU = torch.device("cpu")


def small(recipe: str) -> DecoderConfig:
    config = load_recipe(recipe)
    return config.replace(model=config.model.replace(n_layers=2))


def trace(recipe, mesh, rank, dtype=torch.float32):
    """The text of the whole step, captured as one rank of a fake mesh."""
    config = small(recipe)
    with fake_groups(mesh, rank, CPU) as groups:
        model = build_model(config, CPU)
        table = build_table(model, model.parallel_plan(), mesh)
        parallelize(model, model.parallel_plan(), mesh, groups.coords())
        step = make_step(model, table, compute_dtype=dtype, reduce_dtype=torch.float32)
        with FakeTensorMode(shape_env=ShapeEnv()):
            state = {slot.name: torch.empty(slot.local_shape, requires_grad=True) for slot in table}
            buffers = {name: torch.empty(b.shape, dtype=b.dtype) for name, b in buffers_of(model).items()}
            batch = {name: torch.empty(2, 32, dtype=torch.int64) for name in ("tokens", "labels")}
            coords = torch.empty(len(COORDS), dtype=torch.int64)
            scalars = {name: torch.empty((), dtype=torch.int64) for name in model.normalizers}
            graph = make_fx(step)(state, buffers, batch, coords, scalars)
        return graph.print_readable(print_output=False)


@pytest.mark.parametrize("etp", [pytest.param(1, marks=pytest.mark.long), 2])
def test_two_ranks_of_an_8_rank_mesh_trace_the_same_text(etp):
    mesh = Mesh(dp_shard=4, tp=2, ep=4, etp=etp)
    first, other = (trace("deepseek_v3_debugmodel", mesh, rank) for rank in (0, 5))
    assert first == other


def test_the_text_names_logical_groups_only():
    text = trace("deepseek_v3_debugmodel", Mesh(dp_replicate=2, dp_shard=2, tp=2, ep=2), 3)
    named = set(re.findall(r"_c10d_functional\.\w+\.default\([^)]*'([^']*)'\)", text)) - {"sum", "max"}
    assert named <= {group.value for group in Group}
    assert {"fsdp_gather", "fsdp_scatter", "tp", "ep", "dp_replicate"} <= named


def test_a_mesh_of_1024_ranks_traces_in_one_process():
    text = trace("deepseek_v3_debugmodel", Mesh(dp_shard=512, tp=2, ep=8), 777, torch.bfloat16)
    assert "all_to_all_single" in text
    assert "_grouped_mm" in text or "grouped_mm" in text
