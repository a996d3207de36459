"""The step of any mesh in one process computes what one device computes, and a fault in it is seen."""

import json

import numpy as np
import pytest
import torch

from monograph.axes import Group
from monograph.cli import main
from monograph.compat.ops import ALL_REDUCE, ALL_TO_ALL
from monograph.execute.base import MeshStep
from monograph.execute.gradients import Gradients
from monograph.graph.signature import OutputKind
from monograph.parallel.mesh import Mesh
from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.verify.simulate import captured
from monograph.verify.simulate.collectives import SimulationError, run_collective
from monograph.verify.simulate.coordinates import Coordinates
from monograph.verify.simulate.execute import SharedValue
from monograph.verify.simulate.placements import find_placement
from monograph.verify.simulate.run import simulate
from monograph.verify.simulate.small_copy import make_small_copy
from tests.kit.tiny import tiny
from tests.verify.plantings import missing_sum

EVERY_AXIS = {"replicate": 2, "shard": 2, "cp": 2, "tp": 2}
MESHES = {
    "llama3": EVERY_AXIS,
    "qwen3": {"shard": 2, "cp": 2, "tp": 2, "method": "ulysses"},
    "qwen3_moe": {**EVERY_AXIS, "ep": 4, "etp": 2},
    "deepseek_v3": {**EVERY_AXIS, "ep": 8, "gather": "latent"},
    "gpt_oss": {"shard": 2, "tp": 2, "ep": 4},
    "mistral": {"cp": 4},
    "gemma3": {"cp": 2, "tp": 2},
    "llama4": {"shard": 2, "tp": 2, "ep": 2, "etp": 2},
}


def simulate_tiny(model, folder, changes=None, **degrees):
    config = tiny(model, folder, changes, **degrees)
    return simulate(config, plan_run_mesh(config, count_ranks(config.parallelism)))


@pytest.mark.parametrize("model", MESHES)
def test_a_mesh_of_every_family_computes_what_one_device_computes(model, tmp_path):
    found = simulate_tiny(model, tmp_path, **MESHES[model])
    assert found.is_equal, [str(entry) for graph in found.graphs for entry in graph.comparison.wrong]
    assert [graph.after for graph in found.graphs] == ["captured", "all passes"]
    assert 0 < found.worst < 1e-9
    assert all(graph.comparison.compared >= 14 for graph in found.graphs)


@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.long), "bfloat16"])
def test_the_scale_of_an_embedding_is_that_of_the_captured_dtype(dtype, tmp_path):
    changes = {"training.compute_dtype": dtype, "model.mask": "document"}
    found = simulate_tiny("gemma2", tmp_path, changes, shard=2, cp=2)
    assert found.config.model.dim**0.5 % 1, "a root that no dtype holds"
    assert found.is_equal and found.worst < 1e-9, found.blame


def test_biases_of_experts_move_by_numbers_that_no_dtype_holds(tmp_path):
    changes = {"model.moe.n_experts": 12, "model.moe.router.n_groups": 2, "model.moe.router.top_groups": 1}
    found = simulate_tiny("deepseek_v3", tmp_path, changes | {"model.moe.router.top_k": 2}, shard=3, ep=3)
    assert found.config.model.moe.n_experts == 12
    assert found.is_equal and found.worst < 1e-9, found.blame


@pytest.mark.parametrize(("dim", "rows", "length"), [("batch", 6, 16), ("seq", 2, 24)])
def test_a_small_copy_can_be_cut_into_the_chunks_of_its_run(dim, rows, length, tmp_path):
    chunks = {"strategy": "graph", "chunk_dim": dim, "num_chunks": 3, "modules": "layers.*.moe"}
    changes = {f"compile.expert_overlap.{name}": value for name, value in chunks.items()}
    sizes = {"compile.mode": "graph", "training.local_batch_size": 9, "training.seq_len": 48}
    config = tiny("deepseek_v3", tmp_path, changes | sizes, shard=2, tp=2, ep=2)
    small = make_small_copy(config, plan_run_mesh(config, 4))
    assert (small.training.local_batch_size, small.training.seq_len) == (rows, length)


def test_a_dim_that_no_rank_can_have_two_slices_of_is_no_sequence():
    mesh = Mesh(cp=2)
    value = SharedValue(Coordinates(mesh).by_key(range(2)), [torch.ones(1, 3), torch.zeros(1, 3)])
    assert find_placement(value, [torch.ones(2, 3)], mesh) is None


def test_documents_are_kept_apart_on_every_rank(tmp_path):
    found = simulate_tiny("deepseek_v3", tmp_path, {"model.mask": "document"}, shard=2, cp=2)
    assert found.is_equal, [str(entry) for graph in found.graphs for entry in graph.comparison.wrong]


@pytest.mark.parametrize("name", ["layers.1.ffn_norm.weight", pytest.param("head.norm.weight", marks=pytest.mark.long)])
def test_a_gradient_that_is_not_summed_over_tensor_parallel_ranks_differs(name, tmp_path):
    with missing_sum(name, Group.TP_GRADS)():
        found = simulate_tiny("llama3", tmp_path, shard=2, tp=2)
    assert [entry.name for entry in found.graphs[0].comparison.wrong] == [name]


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (OutputKind.LOSS, "", "the loss is not computed"),
        (OutputKind.GRADIENT, "layers.1.attention.wq.weight", "the gradient layers.1.attention.wq.weight is not"),
        (OutputKind.METRIC, "expert_load", "the metric expert load is not computed"),
    ],
)
@pytest.mark.parametrize("keeps_name", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_output_that_a_pass_drops_is_named(kind, name, words, keeps_name, tmp_path, monkeypatch):
    def drop(graph, *args, **kwargs):
        place = next(i for i, spec in enumerate(graph.outputs) if (spec.kind, spec.name) == (kind, name))
        nodes = list(graph.results)
        if keeps_name:
            nodes[place] = None
        else:
            del nodes[place]
            graph.outputs = (*graph.outputs[:place], *graph.outputs[place + 1 :])
        graph.module.graph.output_node().args = (nodes,)
        return []

    monkeypatch.setattr(captured, "run_passes", drop)
    found = simulate_tiny("qwen3_moe", tmp_path, shard=2)
    assert found.graphs[0].comparison.is_equal and not found.is_equal
    assert found.blame.startswith(f"in the graph after all passes: {words}")


def test_replicas_of_a_parameter_are_computed_once(tmp_path):
    one, four = (simulate_tiny("llama3", tmp_path, replicate=count).graphs[0] for count in (1, 4))
    assert four.execution.calls + four.execution.shared == 4 * four.nodes - 4
    assert one.execution.calls < four.execution.calls < 4 * one.execution.calls


def test_partitions_follow_what_groups_exchange():
    mesh = Mesh(dp_shard=2, tp=2)
    coordinates = Coordinates(mesh)
    by_tp = coordinates.by_key([rank % 2 for rank in range(4)])
    by_rank = coordinates.by_key(range(4))
    assert coordinates.join([by_tp, coordinates.one]) is by_tp
    assert coordinates.join([by_tp, by_rank]) is by_rank
    assert coordinates.exchange(by_tp, Group.TP, by_place=False) is coordinates.one
    assert coordinates.exchange(by_rank, Group.FSDP_GATHER, by_place=False).labels.tolist() == [0, 1, 0, 1]
    assert coordinates.exchange(by_rank, Group.FSDP_SCATTER, by_place=True) is by_rank
    assert np.array_equal(coordinates.members(Group.TP), [[0, 1], [0, 1], [2, 3], [2, 3]])


def test_a_sum_is_over_the_members_of_each_group():
    coordinates = Coordinates(Mesh(dp_shard=2, tp=2))
    part = coordinates.by_key(range(4))
    arguments = [(torch.tensor([float(rank)]), "sum", "tp") for rank in range(4)]
    found, values = run_collective(ALL_REDUCE, part, arguments, coordinates)
    assert [values[label].item() for label in found.labels] == [1.0, 1.0, 5.0, 5.0]


def test_an_exchange_whose_members_disagree_on_sizes_is_refused():
    coordinates = Coordinates(Mesh(tp=2))
    rows = torch.zeros(3, 1)
    arguments = [(rows, [1, 1], [1, 2], "tp"), (rows, [1, 1], [1, 2], "tp")]
    with pytest.raises(SimulationError, match="member 0 sends 2 rows to member 1, which expects 1"):
        run_collective(ALL_TO_ALL, coordinates.by_key(range(2)), arguments, coordinates)


MESH_FLAGS = ["--parallelism.tensor_parallel_degree", "2", "--parallelism.data_parallel_shard_degree", "2"]


def test_the_command_starts_no_ranks_and_says_what_was_simulated(tmp_path, capsys):
    assert main(["verify", "llama3_debugmodel", "--simulate", *MESH_FLAGS, "--job.dump_folder", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "equal: the plan on 4 ranks computes what one device computes" in shown
    assert "simulated: forward, loss and backward of one micro-batch on every rank" in shown
    assert "at the run's own sizes, captured: 4 kinds of units" in shown
    assert "not simulated: GPU kernels, and rounding in bfloat16" in shown
    assert json.loads((tmp_path / "simulate.json").read_text())["is_equal"] is True


def test_a_plan_that_differs_ends_with_exit_code_1(tmp_path, capsys):
    with missing_sum("head.norm.weight", Group.TP_GRADS)():
        code = main(["verify", "llama3_debugmodel", "--simulate", *MESH_FLAGS, "--job.dump_folder", str(tmp_path)])
    assert code == 1
    assert "the gradient head.norm.weight differs" in " ".join(capsys.readouterr().out.split())


def test_single_passes_are_simulated_on_demand(tmp_path):
    config = tiny("llama3", tmp_path, shard=2, tp=2)
    found = simulate(config, plan_run_mesh(config, 4), every_pass=True)
    assert found.is_equal
    assert {"recompute", "bucket_collectives", "prefetch_all_gathers"} <= {graph.after for graph in found.graphs}


def test_each_pass_needs_a_simulation(capsys):
    assert main(["verify", "llama3_debugmodel", "--each_pass"]) == 2
    assert "--each_pass without --simulate" in capsys.readouterr().err


@pytest.mark.parametrize(
    "degrees",
    [{"shard": 2, "cp": 2, "ep": 2}, pytest.param({"pipeline_parallel_degree": 2}, marks=pytest.mark.long)],
)
def test_an_evaluation_is_simulated_where_a_run_has_one(degrees, tmp_path):
    changes = {"validator.interval": 5, "training.global_batch_size": 8}
    found = simulate_tiny("qwen3_moe", tmp_path, changes, **degrees)
    assert [graph.after for graph in found.graphs][-2:] == ["evaluation, captured", "evaluation, all passes"]
    assert found.is_equal and [graph.comparison.compared for graph in found.graphs[-2:]] == [1, 1]
    assert 0 < found.graphs[-1].comparison.worst < 1e-9


def test_an_evaluation_that_counts_its_loss_on_every_rank_differs(tmp_path, monkeypatch):
    def capture(*args, kind, **given):
        graph = honest(*args, kind=kind, **given)
        if kind == "evaluation":
            (loss,) = graph.results
            with graph.module.graph.inserting_after(loss):
                twice = graph.module.graph.call_function(ALL_REDUCE, (loss, "sum", "tp"))
            graph.module.graph.output_node().args = ([twice],)
        return graph

    honest = captured.capture
    monkeypatch.setattr(captured, "capture", capture)
    found = simulate_tiny("llama3", tmp_path, {"validator.interval": 5}, tp=2)
    assert found.blame == "in the graph of the evaluation, captured: the loss differs by 1.0e+00 on rank 0"


ROUNDS = {"training.global_batch_size": 8}


def test_micro_batches_are_added_up_as_training_adds_them(tmp_path, monkeypatch):
    found = simulate_tiny("deepseek_v3", tmp_path, ROUNDS, shard=2, ep=2)
    assert found.is_equal, found.blame
    assert [graph.after for graph in found.graphs] == ["captured", "captured, round 2", "all passes"]
    monkeypatch.setattr(Gradients, "add", replace_gradient)
    found = simulate_tiny("deepseek_v3", tmp_path, ROUNDS, shard=2, ep=2)
    assert found.blame.startswith("outside of the graph: gradient norm differs by"), found.blame


def replace_gradient(self, name, gradient):
    """The last micro-batch of an update alone is kept."""
    self.parameters[name].grad = gradient


def test_counts_of_one_micro_batch_of_several_are_refused(tmp_path, monkeypatch):
    honest = MeshStep.compute_scalars
    monkeypatch.setattr(MeshStep, "compute_scalars", lambda self, batches: honest(self, batches[:1]))
    found = simulate_tiny("llama3", tmp_path, ROUNDS, shard=2)
    assert found.blame.startswith("outside of the graph: counts that sums are divided by differs by"), found.blame


def test_a_small_copy_keeps_heads_that_ulysses_can_share(tmp_path):
    """Six heads over three ranks, of which two queries for each of two keys would leave four."""
    sizes = {"model.attention.n_heads": 6, "model.attention.n_kv_heads": 2, "training.seq_len": 24}
    found = simulate_tiny("llama3", tmp_path, sizes, cp=3, tp=2, method="ulysses")
    assert found.is_equal and found.config.model.attention.n_heads % 6 == 0, found.blame
