"""Our own update: the kernel does what the plain form does, whatever the size, the dtype and the verdict."""

import pytest
import torch

from monograph.kernels.update import make_reference_update, make_update
from monograph.train.optimizer_config import AdamWConfig

CPU = torch.device("cpu")
GPU = pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)
NUMBERS = (0.9, 0.95, 1e-8)


def make_inputs(device, count, dtype, *, excess=1.5, broken=0.0):
    torch.manual_seed(count)
    parameter, gradient, mean = torch.randn(3, count, device=device).unbind()
    square = torch.rand(count, device=device) * 1e-3
    numbers = [torch.tensor(x, device=device) for x in (1e-3, 1 - 1e-4, 0.1, 0.05, excess, broken)]
    return [parameter.clone(), gradient.to(dtype), mean.clone(), square, *numbers]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count", [1, 2048, 4099])
def test_a_parameter_and_its_moments_become_what_the_plain_form_makes_of_them(count, dtype):
    """The plain form is compared with torch's optimizer in tests/train/test_optimizer.py."""
    start, wanted, found = (make_inputs(torch.device("cuda"), count, dtype) for _ in range(3))
    make_reference_update(*NUMBERS)(*wanted)
    make_update(*NUMBERS)(*found, None)
    for index in (0, 2, 3):
        torch.testing.assert_close(found[index], wanted[index], rtol=1e-6, atol=2e-7)
        assert not torch.equal(found[index], start[index])
    assert torch.equal(found[1], start[1]), "gradients are read only"


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("broken", [0.0, 1.0])
def test_a_copy_is_the_parameter_in_another_dtype(device, broken):
    alone, found = (make_inputs(device, 4099, torch.bfloat16, broken=broken) for _ in range(2))
    copy = found[0].to(torch.bfloat16)
    make_update(*NUMBERS)(*alone, None)
    make_update(*NUMBERS)(*found, copy)
    assert all(map(torch.equal, alone, found)), "writing it changes nothing else"
    assert torch.equal(copy, found[0].to(torch.bfloat16))


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_broken_step_changes_nothing(device):
    start, found = (make_inputs(device, 3000, torch.float32, broken=1.0, excess=float("nan")) for _ in range(2))
    make_update(*NUMBERS)(*found, None)
    assert all(torch.equal(found[index], start[index]) for index in range(4))


@pytest.mark.gpu
def test_a_whole_optimizer_on_a_gpu_agrees_with_torchs_on_a_cpu():
    results = []
    for device, implementation in ((CPU, "fused"), (torch.device("cuda"), "single_pass")):
        torch.manual_seed(0)
        shapes = {"a.weight": (300, 70), "experts.w": (3, 50, 41), "norm.weight": (77,), "bias": (1,)}
        parameters = {name: torch.nn.Parameter(torch.randn(shape).to(device)) for name, shape in shapes.items()}
        optimizer = AdamWConfig(implementation=implementation).build(parameters=parameters)
        for rate in (1e-3, 1e-2, 1e-3):
            for parameter in parameters.values():
                parameter.grad = torch.randn(parameter.shape).to(device)
            numbers = {"loss": torch.ones((), device=device), "grad_norm": torch.full((), 2.0, device=device)}
            optimizer.step(rate, max_norm=0.5, **numbers)
        moments = {" ".join(name): moment for name, moment in optimizer.state().items()}
        results.append({name: value.detach().cpu() for name, value in (parameters | moments).items()})
    for name, wanted in results[0].items():
        torch.testing.assert_close(results[1][name], wanted, rtol=2e-6, atol=1e-7)
