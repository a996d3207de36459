"""The picture of a simulated mesh: which collectives run over which axes, and the axes of a fault."""

import math

import pytest

from monograph.axes import Group
from monograph.cli import main
from monograph.parallel.mesh import Mesh
from monograph.verify.simulate.picture import draw_mesh, find_axes, find_degrees
from tests.verify.plantings import missing_sum
from tests.verify.simulate.test_simulate import simulate_tiny


@pytest.mark.parametrize(
    "mesh", [Mesh(pp=2, dp_replicate=3, dp_shard=4, cp=5, tp=7), Mesh(dp_shard=8, tp=4, ep=4, etp=2)]
)
def test_the_axes_of_a_group_have_as_many_ranks_as_the_group(mesh):
    degrees = find_degrees(mesh, has_experts=True)
    for group in Group:
        assert math.prod(degrees[name] for name in find_axes(group, degrees)) == mesh.group_size(group), group


def test_a_fault_is_drawn_at_the_axis_it_is_about(tmp_path):
    with missing_sum("layers.1.ffn_norm.weight", Group.TP_GRADS)():
        picture = draw_mesh(simulate_tiny("llama3", tmp_path, shard=2, tp=2))
    assert not picture["is_equal"] and picture["fault_axes"] == ["tp"]
    assert picture["fault"].startswith("partial over tp reaches layers.1.ffn_norm.weight")
    rows = {(row["op"], row["group"]): row for row in picture["rows"]}
    assert rows["all gather", "fsdp_gather"]["axes"] == ["dp_shard"] and rows["all reduce", "tp_grads"]["count"] > 0


def test_inspect_draws_the_mesh_where_that_is_asked_for(tmp_path, capsys):
    words = ["inspect", "llama3_debugmodel", "--model.n_layers", "1", "--parallelism.tensor_parallel_degree", "2"]
    assert main([*words, "--simulate", "true", "--out", str(tmp_path / "page")]) == 0
    assert "simulated, equal to one device in fp64" in " ".join(capsys.readouterr().out.split())
    page = (tmp_path / "page" / "index.html").read_text()
    assert '"simulated":{"ranks":2,"axes":[{"name":"tp","degree":2}]' in page
    piped = [*words[:4], "--parallelism.pipeline_parallel_degree", "2", "--training.global_batch_size", "16"]
    assert main([*piped, "--simulate", "true", "--out", str(tmp_path / "piped")]) == 2
    assert "--simulate true with a pipeline" in capsys.readouterr().err
