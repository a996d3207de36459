"""Where gradients of micro-batches go: the first is the buffer, others are added, a replay finds the same buffers."""

import pytest
import torch

from monograph.execute.gradients import Gradients
from monograph.parallel.groups import joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_step
from monograph.train.build_optimizer import build_optimizer
from tests.execute.updates import CPU
from tests.kit.tiny import tiny


def make():
    parameters = {"a": torch.nn.Parameter(torch.zeros(3)), "b": torch.nn.Parameter(torch.zeros(2, 2))}
    return Gradients(parameters), parameters


def test_the_first_gradient_becomes_the_buffer_and_others_are_added():
    gradients, parameters = make()
    first = torch.ones(3)
    assert gradients.is_empty
    gradients.add("a", first)
    assert not gradients.is_empty and parameters["a"].grad is first
    gradients.add("a", torch.full((3,), 2.0))
    assert parameters["a"].grad is first and first.tolist() == [3.0] * 3


def test_a_part_of_something_larger_is_copied():
    gradients, parameters = make()
    bucket = torch.arange(10.0)
    gradients.add("a", bucket[2:5])
    bucket.zero_()
    assert parameters["a"].grad.tolist() == [2.0, 3.0, 4.0]


def test_buffers_can_be_used_again_after_an_update_dropped_them():
    gradients, parameters = make()
    for name, parameter in parameters.items():
        gradients.add(name, torch.ones_like(parameter))
    buffers = gradients.taken()
    for parameter in parameters.values():
        parameter.grad = None
    assert gradients.is_empty
    gradients.restore(buffers)
    assert all(parameters[name].grad is buffer for name, buffer in buffers.items())


@pytest.mark.parametrize("keeps_dtype", [False, True])
def test_gradients_of_narrow_parameters_are_added_in_the_reduce_dtype(keeps_dtype):
    parts = torch.rand(500, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    for reduce_dtype, most in ((torch.float32, 0.0), (torch.bfloat16, 1.0)):
        weight = torch.nn.Parameter(torch.zeros(64, dtype=torch.bfloat16))
        gradients = Gradients({"a": weight}, reduce_dtype=reduce_dtype, keeps_dtype=keeps_dtype)
        gradients.add("a", parts[0])
        assert weight.grad.dtype is torch.bfloat16, "a lone gradient takes no more memory than its parameter"
        for part in parts[1:]:
            gradients.add("a", part.clone())
        assert weight.grad.dtype is reduce_dtype
        error = (weight.grad.double() / parts.double().sum(0) - 1).abs().max().item()
        assert error < 1e-6 if not most else 0.01 < error < most


@pytest.mark.parametrize("way", ["eager graph", "eager fsdp2", "graph auto"])
def test_an_update_of_bf16_weights_sums_its_micro_batches_in_fp32_in_every_mode(way, tmp_path):
    """Against a plain loop: autograd's gradient of each micro-batch, added up in fp32."""
    mode, fsdp = way.split()
    narrow = {"training.dtype": "bfloat16", "training.compute_dtype": "bfloat16", "training.global_batch_size": 24}
    config = tiny("llama3", tmp_path, {**narrow, "compile.mode": mode, "parallelism.fsdp": fsdp})
    random = torch.Generator().manual_seed(0)
    batches = [{"tokens": torch.randint(0, 256, (1, 32), generator=random)} for _ in range(24)]
    batches = [{**each, "labels": each["tokens"].roll(-1, 1)} for each in batches]
    with joined_groups(Mesh(), CPU) as groups:
        step = build_step(config, groups)
        optimizer = build_optimizer(config.plan_optimizer(), step)
        scalars = step.compute_scalars(batches)
        wanted = {name: torch.zeros(value.shape) for name, value in step.trained.items()}
        for batch in batches:
            step(batch, scalars)
            for name, value in step.trained.items():
                wanted[name] += value.grad
            step.discard()
        step.accumulate(batches, scalars)
        for name, value in step.trained.items():
            assert torch.equal(value.grad, wanted[name]), name
        one = torch.tensor(1.0)
        optimizer.step(1e-3, loss=one, grad_norm=one)
        step.close()
