"""Which steps can be recorded as a CUDA graph, and why others cannot; recording itself needs a GPU."""

from types import SimpleNamespace

import pytest
import torch

from monograph.errors import ConfigError
from monograph.execute.build import make_recorder
from monograph.execute.config import CompileConfig
from monograph.execute.cudagraph import SHOWN, find_obstacles, refuse
from monograph.parallel.mesh import Mesh
from monograph.passes.compile.mark_regions_options import MarkRegionsConfig
from monograph.passes.config import PassesConfig
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.passes.runner import build_passes, run_passes
from tests.execute.updates import GROUPED
from tests.kit.pipelines import capture_small

LOCAL = {name: value for name, value in GROUPED.items() if name.startswith(("training", "model"))}


@pytest.mark.parametrize(
    ("model", "changes"),
    [("llama3", {}), *(pytest.param(model, LOCAL, marks=pytest.mark.long) for model in ("deepseek_v3", "qwen3_moe"))],
)
def test_a_step_with_local_experts_has_nothing_that_cannot_be_recorded(model, changes):
    graph, facts = capture_small(model, Mesh(), **changes)
    run_passes(graph, build_passes(PassesConfig()), facts, is_measured=False)
    assert find_obstacles(graph, device="cpu") == []


@pytest.mark.long
def test_an_exchange_is_named_with_every_node_that_depends_on_its_sizes():
    graph, _ = capture_small("deepseek_v3", Mesh(dp_shard=2, ep=2), **LOCAL)
    found = find_obstacles(graph, device="cpu")
    assert any(
        "layers.1.moe" in line and "_local_scalar_dense" in line and "reads a number on the host" in line
        for line in found
    )
    assert any("all_to_all_single" in line and "changes from step to step" in line for line in found)
    assert not any("layers.0" in line for line in found), "the dense block could be recorded"


def test_copies_to_the_host_and_nodes_elsewhere_are_named():
    graph, facts = capture_small("llama3", Mesh())
    assert all(line.endswith("runs on the cpu") for line in find_obstacles(graph, device="cuda"))
    config = PassesConfig(offload_activations=OffloadActivationsConfig(budget_gib=1.0, min_bytes=64))
    run_passes(graph, build_passes(config), facts, is_measured=False)
    assert any("copies between the device and the host" in line for line in find_obstacles(graph, device="cpu"))


@pytest.mark.parametrize(
    "config", [{"mark_regions": MarkRegionsConfig(regions=("blocks",))}, {"on": ("compile_whole",)}]
)
def test_compiled_code_does_not_hide_that_the_host_is_needed(config, monkeypatch):
    monkeypatch.setattr("monograph.passes.compile.regions.compile_graph", lambda module, *_, **__: module)
    graph, facts = capture_small("qwen3_moe", Mesh(), **{"model.moe.experts.backend": "grouped_loop"})
    needed = {line.split(":")[0] for line in find_obstacles(graph, device="cpu")}
    assert needed, "a loop over experts reads their sizes"
    run_passes(graph, build_passes(PassesConfig(**config)), facts, is_measured=False)
    found = find_obstacles(graph, device="cpu")
    assert graph.compiled and found and all("reads a number on the host" in line for line in found)
    if "on" not in config:
        assert {line.split(":")[0] for line in found} == needed, "regions leave these ops visible"


def test_ranks_that_share_a_gpu_over_gloo_run_op_by_op(monkeypatch):
    monkeypatch.setattr("monograph.execute.build.ReplayWatchdog", lambda **_: None)

    def make(cuda_graph, *, copies_through_host):
        groups = SimpleNamespace(
            **{"mesh": Mesh(dp_shard=2), "rank": 0, "device": torch.device("cuda", 0), "timeout_seconds": 30.0},
            **{"has_peers": True, "copies_through_host": copies_through_host},
        )
        return make_recorder(SimpleNamespace(compile=CompileConfig(mode="graph", cuda_graph=cuda_graph)), groups)

    assert make("auto", copies_through_host=False) and make("auto", copies_through_host=True) is None
    with pytest.raises(ConfigError, match="share a GPU"):
        make("require", copies_through_host=True)


def test_asking_for_a_recording_that_is_impossible_is_an_error_with_the_reasons():
    error = refuse([f"layers.{index}: op: reason" for index in range(SHOWN + 3)])
    assert isinstance(error, ConfigError)
    assert "11 nodes" in error.what and "layers.7: op" in error.why and error.why.endswith("and 3 more")
