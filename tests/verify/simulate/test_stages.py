"""Pipelines in one process: all stages, what they hand on, and what the ranks of different stages exchange."""

from unittest.mock import patch

import pytest
import torch

from monograph.axes import Group
from monograph.cli import main
from monograph.errors import ConfigError
from monograph.graph.signature import InputKind, OutputKind
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.mesh_reductions import all_reduce_over_data
from monograph.train.layout import plan_run_mesh
from monograph.verify.simulate import update
from monograph.verify.simulate.captured import capture_step
from monograph.verify.simulate.run import simulate
from monograph.verify.simulate.small_copy import make_small_copy
from monograph.verify.simulate.stages import find_stage_mesh, join_stages
from tests.kit.tiny import tiny
from tests.verify.plantings import missing_sum

LAYERS = {"training.global_batch_size": 16, "model.n_layers": 4}
KINDS = {"model.layer_kinds": ("window", "full") * 2}
CASES = {
    "llama3 1f1b": ("llama3", 8, {"pp": 2, "shard": 2, "tp": 2}, {}),
    "gemma3 tied, replicas": ("gemma3", 8, {"pp": 2, "replicate": 2, "shard": 2}, KINDS),
    "deepseek_v3 experts": ("deepseek_v3", 8, {"pp": 2, "shard": 2, "cp": 2, "ep": 2}, {}),
    "qwen3_moe split backward": ("qwen3_moe", 4, {"pp": 2, "shard": 2, "schedule": "zero_bubble"}, {}),
    "llama3 interleaved": ("llama3", 4, {"pp": 2, "shard": 2, "schedule": "interleaved_1f1b"}, {}),
    "llama4 zbv": ("llama4", 4, {"pp": 2, "shard": 2, "schedule": "zbv"}, {}),
}
QUICK = ("llama3 1f1b", "gemma3 tied, replicas")


def make_config(case, folder):
    model, ranks, degrees, changes = CASES[case]
    names = {"pp": "pipeline_parallel_degree", "schedule": "pipeline_schedule"}
    degrees = {names.get(name, name): value for name, value in degrees.items()}
    graph = {"compile.mode": "graph", "compile.cuda_graph": "off"}
    config = tiny(model, folder, {**LAYERS, **graph, **changes}, fsdp="graph", **degrees)
    return config, plan_run_mesh(config, ranks)


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in QUICK else pytest.mark.long) for case in CASES]
)
def test_the_stages_of_every_family_compute_what_one_device_computes(case, tmp_path):
    config, mesh = make_config(case, tmp_path)
    found = simulate(config, mesh, every_pass=case == "qwen3_moe split backward")
    assert found.is_equal, (found.blame, [str(entry) for graph in found.graphs for entry in graph.comparison.wrong])
    assert 0 < found.worst < 1e-9 and found.mesh.pp == 2
    names = {entry.name for entry in found.update}
    assert {"loss of the update", "gradient norm"} < names
    layers = {name.split(".")[1] for name in names if name.startswith("update of layers.")}
    assert layers == {str(number) for number in range(found.config.model.n_layers)}


def test_a_pipeline_with_a_stage_for_every_unit_keeps_all_blocks(tmp_path):
    degrees = {"pipeline_parallel_degree": 2, "pipeline_schedule": "interleaved_1f1b"}
    config = tiny("llama3", tmp_path, {"training.global_batch_size": 4, "model.n_layers": 2}, **degrees)
    assert make_small_copy(config, plan_run_mesh(config, 2)).model.n_layers == 2


@pytest.mark.parametrize(
    ("path", "stages"),
    [
        ("layers.0.attention.wo", (True, False)),
        ("layers.*.attention.wo", (True, True)),
        ("layers.3.*.w2", (False, True)),
    ],
)
def test_what_is_saved_may_be_in_one_stage_alone(path, stages, tmp_path):
    step = capture_saving(path, tmp_path)
    selector = f"{path}::mm"
    assert [facts.activations.save for facts in step.facts] == [(selector,) if has else () for has in (*stages, False)]
    assert [name for name, _ in step.run_passes(every_pass=False)] == ["all passes"]


def test_a_selector_that_no_stage_has_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"layers.0.attention.wx::mm, which no node of the step matches"):
        list(capture_saving("layers.0.attention.wx", tmp_path).run_passes(every_pass=False))


def capture_saving(path, folder):
    """Three stages, the last of which has no block, that save the matmuls of a path."""
    changes = {"activation_checkpoint.mode": "full", "activation_checkpoint.save": (f"{path}::mm",)}
    stages = {"pipeline_parallel_degree": 3, "pipeline_stages": ("layers.2", "head")}
    config = tiny("llama3", folder, {**LAYERS, "compile.mode": "graph", **changes}, **stages)
    with fake_groups(plan_run_mesh(config, 3), 0, torch.device("cpu")) as groups:
        return capture_step(config, groups)


def test_gradients_of_a_tied_matrix_are_added_over_the_stages_that_have_it(tmp_path):
    config, mesh = make_config("gemma3 tied, replicas", tmp_path)
    with fake_groups(mesh, 0, torch.device("cpu")) as groups:
        step = capture_step(make_small_copy(config, mesh), groups)
    name = "embedding.weight"
    holders = [(OutputKind.GRADIENT, name) in [(spec.kind, spec.name) for spec in each.outputs] for each in step.graphs]
    assert holders == [True, True]
    joined = step.joined()
    result = dict(zip(((spec.kind, spec.name) for spec in joined.outputs), joined.results, strict=True))
    assert result[OutputKind.GRADIENT, name].target is torch.ops.aten.add.Tensor
    kinds = {spec.kind for spec in joined.inputs}
    assert kinds.isdisjoint((InputKind.CARRY, InputKind.CARRY_GRADIENT))


def test_what_no_stage_hands_on_is_named(tmp_path):
    config, mesh = make_config("llama3 1f1b", tmp_path)
    with fake_groups(mesh, 0, torch.device("cpu")) as groups:
        first, last = capture_step(make_small_copy(config, mesh), groups).graphs
    last.outputs = tuple(spec for spec in last.outputs if spec.kind is not OutputKind.CARRY_GRADIENT)
    pairs = zip(last.outputs, last.results, strict=False)
    last.module.graph.output_node().args = ([node for _, node in pairs],)
    with pytest.raises(ValueError, match="no stage hands on what"):
        join_stages([first, last])


def test_the_ranks_of_a_stage_come_one_after_the_other():
    mesh = Mesh(pp=2, dp_replicate=2, dp_shard=2, tp=2, ep=2)
    stage = find_stage_mesh(mesh)
    for group in Group:
        if group is not Group.WORLD and not group.value.startswith("pp"):
            for rank in range(stage.world_size):
                assert mesh.members(group, rank) == stage.members(group, rank), group


def test_a_sum_that_is_missing_in_a_stage_is_named(tmp_path):
    config, mesh = make_config("llama3 1f1b", tmp_path)
    with missing_sum("layers.1.ffn_norm.weight", Group.TP_GRADS)():
        found = simulate(config, mesh)
    assert "layers.1.ffn_norm.weight" in found.blame and "tp" in found.blame, found.blame


def test_a_loss_that_is_not_summed_over_stages_differs(tmp_path):
    config, mesh = make_config("llama3 1f1b", tmp_path)
    with patch.object(update.StageStep, "total_loss", lambda step, share: all_reduce_over_data(share)):
        found = simulate(config, mesh)
    assert found.blame.startswith("outside of the graph: loss of the update differs")


def test_a_tied_matrix_that_two_stages_count_in_the_norm_differs(tmp_path):
    config, mesh = make_config("gemma3 tied, replicas", tmp_path)
    held = lambda table, own: {slot.name for slot in table.of_units(own)}  # noqa: E731
    with patch.object(update, "find_counted", held):
        found = simulate(config, mesh)
    assert found.blame.startswith("outside of the graph: gradient norm differs")


def test_the_command_simulates_pipelines(tmp_path, capsys):
    flags = "--parallelism.pipeline_parallel_degree 2 --training.global_batch_size 16 --model.n_layers 4"
    words = ["verify", "llama3_debugmodel", "--simulate", *flags.split(), "--job.dump_folder", str(tmp_path)]
    assert main(words) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "equal: the plan on 2 ranks computes what one device computes" in shown
    assert "not simulated: the schedule's order" in shown
