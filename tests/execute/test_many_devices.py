"""Each rank's tensors, launches, streams and events are on its own GPU, on a node with several."""

from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from monograph.capture.trace import drop_device_numbers
from monograph.compat.capture import fake_tensors
from monograph.execute.base import MetricSums
from monograph.execute.bind_device import bind_device
from monograph.execute.device import use_device
from monograph.execute.gradients import Gradients
from monograph.execute.outputs import StepOutputBuffers
from monograph.execute.program import Program
from monograph.kernels import experts_on_gpu, matmul_swiglu_on_gpu
from monograph.kernels.launch import launch
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.passes.config import PassesConfig
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.passes.runner import build_passes, run_passes
from tests.execute.updates import CPU, small
from tests.kit.capture import prepare
from tests.kit.many_devices import FOURTH, as_gpu_graph, like_on_fourth, noted_allocations

OFFLOADED = PassesConfig(offload_activations=OffloadActivationsConfig(budget_gib=1.0, min_bytes=64))


def run_on_fourth(model, folder, is_bound=True):
    """Run a captured step on fake tensors of the fourth GPU; what it allocated."""
    mesh = Mesh(dp_shard=2)
    config = small(model, folder, {"compile.mode": "graph", "parallelism.fsdp": "graph"})
    config = config.replace(model=config.model.for_device("cuda"))
    with fake_groups(mesh, 1, CPU) as groups:
        shape = (config.training.local_batch_size, config.training.seq_len)
        batch = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "labels")}
        prepared = prepare(config, groups, batch, valid_tokens=7)
        graph = prepared.capture("step")
        run_passes(graph, build_passes(OFFLOADED), prepared.facts, is_measured=False)
        graph = as_gpu_graph(graph)
        mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
        inputs = like_on_fourth(prepared.inputs, mode)
        bind = mock.patch("monograph.execute.program.bind_device", bind_device if is_bound else lambda *_: None)
        with mode, torch.no_grad(), noted_allocations() as seen, bind:
            program = Program(graph, StepOutputBuffers(Gradients(inputs.state), MetricSums()), inputs)
            program.run(inputs)
    return seen


@pytest.mark.parametrize("model", ["llama3", "deepseek_v3"])
def test_a_program_names_the_number_of_its_gpu_wherever_it_allocates(model, tmp_path):
    seen = run_on_fourth(model, tmp_path)
    assert seen.unnumbered == [] and seen.elsewhere == []


def test_a_device_without_a_number_would_be_seen(tmp_path):
    with pytest.raises(RuntimeError, match="cuda:0 and cuda:3"):
        run_on_fourth("llama3", tmp_path, is_bound=False)


def test_the_text_of_a_graph_names_no_gpu_by_number():
    """Also of graphs inside of it: ranks would not have the same text."""
    inside = torch.fx.Graph()
    inside.output(inside.call_function(torch.full, ((), 1.0), {"device": FOURTH}))
    drop_device_numbers(inside)
    assert "cuda" in str(inside) and "cuda:3" not in str(inside)


def test_kernels_are_chosen_for_tensors_without_memory():
    """Kernels are built from such tensors before a step; torch knows no properties of their device."""

    def tell(device):
        assert torch.device(device) == FOURTH
        return SimpleNamespace(major=9, multi_processor_count=4)

    rows, weight = (torch.empty(1024, 256, dtype=torch.bfloat16, device="meta") for _ in range(2))
    experts = torch.empty(4, 256, 256, dtype=torch.bfloat16, device="meta")
    with mock.patch("torch.cuda.get_device_properties", tell), mock.patch("torch.cuda.current_device", lambda: 3):
        assert matmul_swiglu_on_gpu.is_served(512, rows, weight)
        assert experts_on_gpu.is_served(rows, experts)


@pytest.mark.parametrize("rank", [0, 3])
def test_a_process_makes_the_gpu_of_its_local_rank_the_current_one(monkeypatch, rank):
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    with (
        mock.patch("torch.cuda.is_available", lambda: True),
        mock.patch("torch.cuda.device_count", lambda: 4),
        mock.patch("torch.cuda.set_device") as current,
    ):
        assert use_device("auto") == torch.device("cuda", rank)
    current.assert_called_once_with(torch.device("cuda", rank))


def test_a_kernel_is_launched_on_the_gpu_of_its_tensors():
    """Triton launches on the current device: threads of libraries have another one than the main thread."""
    current = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *args, **settings: current.append(torch.cuda.current_device())

    class Guard:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            self.patch = mock.patch("torch.cuda.current_device", lambda: self.device.index)
            self.patch.start()

        def __exit__(self, *_):
            self.patch.stop()

    with fake_tensors():
        value = torch.empty(4, device=FOURTH)
    with mock.patch("torch.cuda.current_device", lambda: 0), mock.patch("torch.cuda.device", Guard):
        launch(Kernel(), (1,), value, 4)
        launch(Kernel(), (1,), mock.Mock(base=value, spec=["base"]), 4)
    assert current == [3, 3]
