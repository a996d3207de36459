"""Sums of squares: right whatever the sizes and dtypes, the same bits for the same values, broken when one is."""

import pytest
import torch

from monograph.kernels.square_sum import (
    add_square_parts,
    count_square_parts,
    reference_square_sum,
    square_parts,
    square_sum,
)

CPU = torch.device("cpu")
GPU = pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)
DEVICES = pytest.mark.parametrize("device", [CPU, GPU])
LARGE_NUMEL = 1 << 20
SIZES = [(1,), (64,), (32_767,), (32_768,), (32_769,), (8 * LARGE_NUMEL + 3,), (64, 0, 4097, LARGE_NUMEL, 7, 100_003)]


def make(sizes, device, dtype=torch.float32):
    torch.manual_seed(0)
    return [torch.randn(size).to(dtype).to(device) for size in sizes]


@DEVICES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_sum_is_that_of_all_squares_in_more_digits(sizes, dtype, device):
    tensors = make(sizes, device, dtype)
    wanted = torch.linalg.vector_norm(torch.cat(tensors).double()).square()
    for form in (square_sum, reference_square_sum):
        found = form(tensors, device)
        assert found.shape == () and found.dtype is torch.float32 and found.device.type == device.type
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=0)


@DEVICES
def test_no_tensors_and_empty_ones_have_the_sum_zero(device):
    for tensors in ([], [torch.empty(0, device=device)]):
        assert square_sum(tensors, device) == 0 and square_sum(tensors, device).device.type == device.type


@DEVICES
@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan"), 3e38])
def test_one_number_that_is_not_finite_makes_the_sum_so(bad, device):
    for index in (0, 69_999):
        tensors = make((70_000, 64), device)
        tensors[0][index] = bad
        assert not square_sum(tensors, device).isfinite()


def test_on_a_cpu_the_sum_is_the_plain_one():
    tensors = make((64, 4097, LARGE_NUMEL), CPU)
    assert torch.equal(square_sum(tensors, CPU), reference_square_sum(tensors, CPU))


@pytest.mark.gpu
@pytest.mark.parametrize("count", [100, 70_000, 1_000_010])
def test_equal_values_have_equal_sums_whatever_their_dtype_place_and_strides(count):
    """Eager and graph mode may differ in all of these, and must not differ in the norm."""
    device = torch.device("cuda")
    (narrow,) = make((count,), device, torch.bfloat16)
    wanted = square_sum([narrow], device)
    assert all(torch.equal(square_sum([narrow], device), wanted) for _ in range(5))
    for dtype in (torch.bfloat16, torch.float32):
        for offset in range(5):
            around = torch.full((count + 10,), float("nan"), dtype=dtype, device=device)
            around[offset : offset + count] = narrow
            assert torch.equal(square_sum([around[offset : offset + count]], device), wanted)
        apart = narrow.to(dtype).view(10, -1).t().contiguous().t()
        assert not apart.is_contiguous() and torch.equal(square_sum([apart], device), wanted)


@DEVICES
def test_parts_computed_apart_and_added_in_order_have_the_bits_of_one_sum(device):
    """What the ranks of a pipeline do, each with the gradients of its own stages."""
    tensors = make((64, 0, 4097, 100_003, 7), device)
    apart = [square_parts([each], device) for each in tensors]
    assert [len(each) for each in apart] == [count_square_parts(each.numel(), each) for each in tensors]
    assert torch.equal(add_square_parts(torch.cat(apart)), square_sum(tensors, device))


def test_dtypes_the_kernel_does_not_read_are_left_to_torch():
    assert square_sum([torch.full((3,), 2.0, dtype=torch.float64)], CPU) == 12
