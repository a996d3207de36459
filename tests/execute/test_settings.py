"""A compiled model leaves no trace in torch's settings: other people's code compiles as it did before."""

import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
import torch.nn.functional as F

from monograph.axes import COORDS
from monograph.execute.layer import CompileFailed, CountingBackend
from monograph.models.config import LossConfig
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.tensor import VocabLoss
from tests.execute.test_layer import Loud
from tests.execute.updates import CPU, LAYER, make_updates, one_rank, small

COMPILERS = (torch._dynamo.config, torch._inductor.config, torch._functorch.config)
ALL = {**LAYER, "compile.components": ("model", "loss", "optimizer")}


def find_settings():
    """Every setting of the compilers, and torch's own public ones, by name."""
    found = {f"{each.__name__}.{name}": value for each in COMPILERS for name, value in each.get_config_copy().items()}
    backends = torch.backends
    return found | {
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads(),
        "tf32": (backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32),
        "sums": backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn": (backends.cudnn.enabled, backends.cudnn.benchmark, backends.cudnn.deterministic),
        "mkldnn": (backends.mkldnn.enabled, backends.mkldnn.deterministic),
        "attention": [
            getattr(backends.cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "math", "cudnn")
        ],
    }


def find_changes(before):
    after = find_settings()
    return {
        name: (before.get(name), after.get(name)) for name in {*before, *after} if before.get(name) != after.get(name)
    }


def cross_entropy(logits, labels):
    return F.cross_entropy(logits, labels, ignore_index=-100)


def read_on_host(x):
    return x * x.sum().item()


def compile_whole(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.fixture(scope="module")
def after_moe(tmp_path_factory):
    """Settings before and the changes after a MoE model was compiled and trained, with everything that compiles."""
    config = small("deepseek_v3", tmp_path_factory.mktemp("runs"), {**ALL, "model.n_layers": 2})
    before = find_settings()
    with one_rank(config) as groups:
        updates = make_updates(config, groups, routings=[(), (0,)])
    assert updates[-1].graphs == 4
    return before


@pytest.mark.long
def test_compiling_and_training_a_moe_model_changes_no_setting(after_moe):
    assert find_changes(after_moe) == {}


@pytest.mark.long
def test_a_run_that_raises_changes_no_setting(after_moe, tmp_path):
    def plant(step):
        step.model.layers[1].feed_forward = Loud(step.model.layers[1].feed_forward, "print")

    config = small("llama3", tmp_path, ALL)
    with one_rank(config) as groups, pytest.raises(CompileFailed):
        make_updates(config, groups, prepare=plant)
    assert find_changes(after_moe) == {}


@pytest.mark.long
def test_a_cross_entropy_with_ignored_labels_still_compiles_as_a_whole(after_moe):
    logits = torch.randn(8, 16, requires_grad=True)
    labels = torch.tensor([1, -100, 3, -100, 5, 6, 7, 8])
    loss = compile_whole(cross_entropy)(logits, labels)
    (gradient,) = torch.autograd.grad(loss, logits)
    expected = cross_entropy(logits, labels)
    assert torch.equal(loss, expected)
    assert torch.equal(gradient, torch.autograd.grad(expected, logits)[0])


def test_a_vocabulary_parallel_loss_still_compiles_as_a_whole(after_moe):
    with fake_groups(Mesh(tp=2), 1, CPU):
        coords = torch.zeros(len(COORDS), dtype=torch.int64)
        loss = VocabLoss(LossConfig(chunk_tokens=4).build(), coords, 30)
        hidden, weight = torch.randn(8, 16, requires_grad=True), torch.randn(15, 16, requires_grad=True)
        labels = torch.tensor([1, -100, 3, -100, 5, 16, 29, 8])
        value = compile_whole(loss)(hidden, weight, labels, torch.tensor(6))
        value.backward()
        assert torch.equal(value, loss(hidden, weight, labels, torch.tensor(6)))


def test_reading_a_value_on_the_host_still_breaks_other_peoples_graphs(after_moe):
    """As torch documents it. With the blocks' flag left on, this would be one graph of another shape."""
    backend = CountingBackend("eager")
    torch.compile(read_on_host, backend=backend)(torch.ones(3))
    assert backend.graphs == 2
