"""Matmuls with gates: what torch and the ops of gates do one after the other, whoever computes it."""

import pytest
import torch

from monograph.kernels import matmul_swiglu_on_gpu
from monograph.kernels.matmul_swiglu import (
    MATMUL_SWIGLU,
    MATMUL_SWIGLU_BACKWARD,
    reference_matmul_swiglu,
    reference_matmul_swiglu_backward,
)
from monograph.kernels.swiglu import SWIGLU, SWIGLU_BACKWARD_PACKED_RECOMPUTE

CPU = torch.device("cpu")
SHAPES = [
    (40, 24, 48),
    (4096, 512, 4096),
    (5000, 520, 4112),
    (16384, 64, 1408),
    (16500, 72, 1008),
    (17000, 64, 112),
    (100, 200, 34000),
]
"""Rows, depth, columns of one half: too few for a GPU's processors; even; odd ends in every direction; one step of
depth; two, the second nearly empty; a single tile beside another, and below it."""


def make(device, dtype, rows, depth, columns):
    """Two matmuls' operands, and a gate's inputs as halves of rows of one matmul."""
    torch.manual_seed(0)
    x = torch.randn(rows, depth, device=device, dtype=dtype)
    weight = torch.randn(2 * columns, depth, device=device, dtype=dtype) / depth**0.5
    grad = torch.randn(rows, depth, device=device, dtype=dtype)
    down = torch.randn(depth, columns, device=device, dtype=dtype) / depth**0.5
    a, up = torch.randn(2, rows // 2, 2 * columns, device=device, dtype=dtype).chunk(2, dim=-1)
    return (x, weight), (grad, down, a, up)


def apart(x, weight):
    both = x @ weight.t()
    return both, SWIGLU(*both.chunk(2, dim=-1))


def backward_apart(grad, weight, x, up):
    return SWIGLU_BACKWARD_PACKED_RECOMPUTE(grad @ weight, x.flatten(0, 1), up.flatten(0, 1))


def is_ours(columns, *operands):
    """Whether the kernel that is written for this GPU serves."""
    return matmul_swiglu_on_gpu.is_served(columns, *operands)


def distance(found, exact):
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("shape", SHAPES[:1], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_on_a_cpu_they_are_the_same_ops(shape, dtype):
    forward, backward = make(CPU, dtype, *shape)
    assert all(map(torch.equal, MATMUL_SWIGLU(*forward), apart(*forward)))
    assert all(map(torch.equal, MATMUL_SWIGLU_BACKWARD(*backward), backward_apart(*backward)))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_number_is_what_two_ops_compute(shape):
    """Each is rounded where two ops round it, so only the order of a matmul's sum can make a difference: less than one
    number in a thousand may differ, and against fp64 ours must not be further away."""
    device = torch.device("cuda")
    forward, backward = make(device, torch.bfloat16, *shape)
    is_hopper = torch.cuda.get_device_properties(device).major == 9
    for operands in (forward, (*backward[:2], *(each.flatten(0, 1) for each in backward[2:]))):
        assert is_ours(shape[2], *operands) == (is_hopper and shape[0] > 40), "or this tests something else"
    for op, plain, exactly, inputs in (
        (MATMUL_SWIGLU, apart, reference_matmul_swiglu, forward),
        (MATMUL_SWIGLU_BACKWARD, backward_apart, reference_matmul_swiglu_backward, backward),
    ):
        before = [each.clone() for each in inputs]
        found, expected = op(*inputs), plain(*inputs)
        exact = exactly(*(each.double() for each in inputs))
        assert all(map(torch.equal, inputs, before)), "nothing is written over"
        for mine, other, best in zip(found, expected, exact, strict=True):
            assert mine.shape == other.shape and mine.is_contiguous()
            assert distance(mine, best) <= distance(other, best) * 1.001
            assert float((mine != other).float().mean()) < 1e-3
            torch.testing.assert_close(mine, other, rtol=2e-2, atol=1e-3)


@pytest.mark.gpu
def test_the_same_bits_every_time_beside_other_work():
    """Memory that results may get is made not a number first, so that nothing is left over from the time before."""
    device = torch.device("cuda")
    forward, backward = make(device, torch.bfloat16, *SHAPES[2])
    first = *MATMUL_SWIGLU(*forward), *MATMUL_SWIGLU_BACKWARD(*backward)
    other, busy = torch.cuda.Stream(), torch.randn(4096, 4096, device=device, dtype=torch.bfloat16)
    for _ in range(20):
        spoilt = [torch.full_like(each, torch.nan) for each in first]
        del spoilt
        with torch.cuda.stream(other):
            busy @ busy
        again = *MATMUL_SWIGLU(*forward), *MATMUL_SWIGLU_BACKWARD(*backward)
        assert all(map(torch.equal, first, again))


@pytest.mark.gpu
def test_more_numbers_than_32_bits_can_count():
    forward, backward = make(torch.device("cuda"), torch.bfloat16, 40_000, 64, 28_672)
    for op, plain, inputs in (
        (MATMUL_SWIGLU, apart, forward),
        (MATMUL_SWIGLU_BACKWARD, backward_apart, backward),
    ):
        for mine, expected in zip(op(*inputs), plain(*inputs), strict=True):
            torch.testing.assert_close(mine[-200:], expected[-200:], rtol=2e-2, atol=1e-3)
            assert float((mine != expected).float().mean()) < 1e-3


@pytest.mark.gpu
def test_operands_may_be_parts_of_wider_ones():
    device = torch.device("cuda")
    (x, weight), (grad, down, a, up) = make(device, torch.bfloat16, *SHAPES[1])
    expected = *MATMUL_SWIGLU(x, weight), *MATMUL_SWIGLU_BACKWARD(grad, down, a, up)
    x, grad, weight, down = (torch.cat([each, each], dim=1)[:, : each.shape[1]] for each in (x, grad, weight, down))
    assert is_ours(a.shape[-1], x, weight)
    found = *MATMUL_SWIGLU(x, weight), *MATMUL_SWIGLU_BACKWARD(grad, down, a, up)
    assert all(map(torch.equal, found, expected))


@pytest.mark.gpu
def test_what_the_kernel_cannot_read_is_computed_by_two_ops():
    device = torch.device("cuda")
    (x, weight), (grad, down, a, up) = make(device, torch.bfloat16, *SHAPES[1])
    turned = down.t().contiguous().t()
    assert not is_ours(a.shape[-1], grad, turned)
    found, expected = MATMUL_SWIGLU_BACKWARD(grad, turned, a, up), backward_apart(grad, turned, a, up)
    assert all(map(torch.equal, found, expected))
    odd = torch.cat([x, x], dim=1)[:, 1 : 1 + x.shape[1]]
    single = [each.float() for each in (x, weight)]
    for inputs in ((odd, weight), single):
        assert not is_ours(a.shape[-1], *inputs)
        assert all(map(torch.equal, MATMUL_SWIGLU(*inputs), apart(*inputs)))


@pytest.mark.gpu
def test_it_replays_in_a_cuda_graph():
    forward, backward = make(torch.device("cuda"), torch.bfloat16, *SHAPES[2])
    expected = *MATMUL_SWIGLU(*forward), *MATMUL_SWIGLU_BACKWARD(*backward)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = *MATMUL_SWIGLU(*forward), *MATMUL_SWIGLU_BACKWARD(*backward)
    for value in found:
        value.fill_(torch.nan)
    graph.replay()
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("op", [MATMUL_SWIGLU, MATMUL_SWIGLU_BACKWARD], ids=str)
def test_fake_tensors_promise_what_ops_return(op):
    forward, backward = make(CPU, torch.float32, *SHAPES[0])
    inputs = forward if op is MATMUL_SWIGLU else backward
    torch.library.opcheck(op, inputs, test_utils=("test_schema", "test_faketensor"))
