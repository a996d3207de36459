"""Our own update: the kernel does what the plain form does, whatever the size, the dtype and the verdict."""

import os
import subprocess
import sys

import numpy
import pytest
import torch

from monograph.compat.triton import HAS_TRITON
from monograph.kernels import update_on_gpu
from monograph.kernels.param_remainders import combine_master, split_master
from monograph.kernels.update import make_reference_update, make_update, rounded_sqrt
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


def narrow_moments(inputs, dtype):
    """The same inputs with moments in this dtype."""
    return [each.to(dtype) if index in (2, 3) else each for index, each in enumerate(inputs)]


@pytest.mark.gpu
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("count", "rows"), [(1, 1), (2048, 1), (4099, 1), (4096, 64), (3001 * 5, 3001)])
def test_the_kernel_makes_what_the_reference_makes_and_its_bits_where_moments_are_bf16(count, rows, dtype, state_dtype):
    """The reference is compared with torch's optimizer in tests/train/test_optimizer.py."""
    wanted = narrow_moments(make_inputs(CPU, count, dtype), state_dtype)
    random = [torch.tensor(12345), torch.arange(rows) * 10**9 + 7] if state_dtype is torch.bfloat16 else [None, None]
    start, found = ([each.to("cuda", copy=True) for each in wanted] for _ in range(2))
    make_reference_update(*NUMBERS)(*wanted, None, *random)
    make_update(*NUMBERS)(*found, None, *(each if each is None else each.cuda() for each in random), None)
    for index in (0, 2, 3):
        assert found[index].dtype is start[index].dtype
        if state_dtype is torch.bfloat16:
            assert torch.equal(found[index].cpu(), wanted[index])
        else:
            torch.testing.assert_close(found[index].cpu(), wanted[index], rtol=1e-6, atol=2e-7)
        assert not torch.equal(found[index], start[index])
    assert torch.equal(found[1], start[1]), "gradients are read only"


@pytest.mark.gpu
@pytest.mark.parametrize("state_dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_updates_masters_in_two_parts_like_masters_in_one(state_dtype):
    wanted = narrow_moments(make_inputs(torch.device("cuda"), 4099, torch.bfloat16), state_dtype)
    random = [None, None]
    if state_dtype is torch.bfloat16:
        random = [torch.tensor(12345, device="cuda"), torch.zeros(1, dtype=torch.int64, device="cuda")]
    weight, rest = split_master(wanted[0])
    found = [weight, *(each.clone() for each in wanted[1:])]
    make_update(*NUMBERS)(*wanted, None, *random, None)
    make_update(*NUMBERS)(*found, None, *random, rest)
    assert torch.equal(combine_master(weight, rest), wanted[0]) and rest.any()
    assert all(torch.equal(found[index], wanted[index]) for index in (2, 3))


def check_masters(device) -> None:
    """Weight, remainder and copy are the reference's: of a tie between two weights, and of what is not a number."""
    ties = torch.tensor([0x3F808000, 0x3F818000, -0x407F8000], dtype=torch.int32).view(torch.float32)
    wanted = make_inputs(CPU, 300, torch.float32, excess=1.0)
    wanted[0][:3], wanted[1][7] = ties, float("nan")
    wanted[4:6] = torch.tensor(0.0), torch.tensor(1.0)  # no rate and no decay: masters stay what they are
    wanted[0], rest = split_master(wanted[0])
    copy = torch.zeros_like(wanted[0])
    *found, found_copy, found_rest = (each.to(device, copy=True) for each in (*wanted, copy, rest))
    make_reference_update(*NUMBERS)(*wanted, copy, None, None, rest)
    names = dict(zip(("beta1", "beta2", "eps"), NUMBERS, strict=True))
    update_on_gpu.update(*found, found_copy, None, None, found_rest, **names)
    for one, other in ((found[0], wanted[0]), (found_copy, copy), (found_rest, rest)):
        torch.testing.assert_close(one.cpu(), other, rtol=0, atol=0, equal_nan=True)
    assert found_copy.isnan().nonzero().flatten().tolist() == [7], "a step that is not found broken hides nothing"
    assert (copy[:3].float().abs() > ties.abs()).all(), "ties go away from zero"


@pytest.mark.gpu
def test_a_copy_of_a_master_in_two_parts_is_the_weight_and_what_is_no_number_stays_none():
    check_masters(torch.device("cuda"))


def check_interpreted() -> None:
    """The kernel has the reference's bits where moments are rounded stochastically, or masters are in two parts."""
    check_masters(CPU)
    for count, rows, dtype in ((2048, 1, torch.bfloat16), (3001 * 5, 3001, torch.float32)):
        wanted = narrow_moments(make_inputs(CPU, count, dtype), torch.bfloat16)
        random = [torch.tensor(12345), torch.arange(rows) * 10**9 + 7]
        found = [each.clone() for each in wanted]
        make_reference_update(*NUMBERS)(*wanted, None, *random)
        update_on_gpu.update(*found, None, *random, None, **dict(zip(("beta1", "beta2", "eps"), NUMBERS, strict=True)))
        assert all(torch.equal(found[index], wanted[index]) for index in (0, 2, 3))


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed, as on machines without a GPU")
def test_the_interpreted_kernel_has_the_bits_of_the_reference():
    """In a process of its own: Triton decides when it is imported whether it interprets kernels."""
    lines = "from tests.kernels.test_update import check_interpreted; check_interpreted()"
    done = subprocess.run([sys.executable, "-c", lines], env=os.environ | {"TRITON_INTERPRET": "1"}, check=False)
    assert done.returncode == 0


def test_square_roots_are_rounded_to_nearest():
    """torch's own are not on every CPU: with Intel's math library six of a thousand are off by a bit."""
    value = torch.rand(10000, generator=torch.Generator().manual_seed(0)) * 1e-3
    exact = numpy.sqrt(value.numpy().astype(numpy.float64)).astype(numpy.float32)
    assert torch.equal(rounded_sqrt(value), torch.from_numpy(exact))


def test_a_second_moment_that_moves_slowly_moves_when_rounded_stochastically_and_else_is_stuck():
    """Round-to-nearest drops every change of less than half a step: the control shows that this test would see it."""
    count, updates, beta2 = 4096, 200, 0.999
    ends = {}
    for name in ("fp32", "nearest", "stochastic"):
        inputs = make_inputs(CPU, count, torch.float32, excess=1.0)
        inputs[1].fill_(1.2)
        inputs[2:4] = torch.zeros(count), torch.ones(count)
        if name != "fp32":
            inputs = narrow_moments(inputs, torch.bfloat16)
        for step in range(updates):
            random = [torch.tensor(step), torch.zeros(1, dtype=torch.int64)] if name == "stochastic" else [None, None]
            make_reference_update(0.9, beta2, 1e-8)(*inputs, None, *random)
        ends[name] = inputs[3].float()
    expected = 1.44 - 0.44 * beta2**updates
    torch.testing.assert_close(ends["fp32"], torch.full((count,), expected), rtol=1e-4, atol=0)
    assert (ends["nearest"] == 1).all(), "a change of 0.00044 is less than half of bf16's step of 0.0078"
    assert abs(ends["stochastic"].mean() - expected) < 5 * ends["stochastic"].std() / count**0.5 < 0.01


@pytest.mark.parametrize("device", [CPU, GPU])
@pytest.mark.parametrize("broken", [0.0, 1.0])
def test_a_copy_is_the_parameter_in_another_dtype(device, broken):
    alone, found = (make_inputs(device, 4099, torch.bfloat16, broken=broken) for _ in range(2))
    copy = found[0].to(torch.bfloat16)
    make_update(*NUMBERS)(*alone, None, None, None, None)
    make_update(*NUMBERS)(*found, copy, None, None, None)
    assert all(map(torch.equal, alone, found)), "writing it changes nothing else"
    assert torch.equal(copy, found[0].to(torch.bfloat16))


@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_broken_step_changes_nothing(device):
    start, found = (make_inputs(device, 3000, torch.float32, broken=1.0, excess=float("nan")) for _ in range(2))
    make_update(*NUMBERS)(*found, None, None, None, None)
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
