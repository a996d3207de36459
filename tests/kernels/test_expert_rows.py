"""The experts' rows by our own ops, against torch's: values, gradients, and what fake tensors promise."""

from functools import partial

import pytest
import torch

from monograph.kernels.expert_rows import (
    COMBINE_ROWS,
    COMBINE_ROWS_BACKWARD,
    SUM_ROWS,
    combine_rows,
    reference_combine_rows,
    reference_combine_rows_backward,
    reference_sum_rows,
    spread_rows,
)
from monograph.models.dispatch import LocalDispatch

CPU = torch.device("cpu")
GPU = pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)
DTYPES = (torch.float32, torch.bfloat16)
SIZES = [(13, 3, 2500), (5, 1, 64), (4, 6, 1)]
"""Tokens, choices, channels: more than a kernel reads at a time and no power of two; one choice; one channel."""


def close(found, expected):
    """Within rounding: a kernel sums in an order of its own."""
    close_enough = {"rtol": 2e-2, "atol": 1e-2} if expected.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-4}
    torch.testing.assert_close(found, expected, **close_enough)


def make_rows(device, dtype, tokens, top_k, dim):
    """Rows with gaps between them, weights, and the rows' order both ways; last, a gradient of the tokens."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(tokens * top_k, dim + 3, generator=generator)
    weights = torch.rand(tokens, top_k, generator=generator)
    order = torch.randperm(tokens * top_k, generator=generator)
    grad = torch.randn(tokens, dim, generator=generator)
    rows, grad = rows.to(device, dtype)[:, 1 : dim + 1], grad.to(device, dtype)
    return rows, weights.to(device), order.to(device), order.argsort().to(device), grad


def differentiate(function, *inputs, grad):
    """The result and the inputs' gradients."""
    leaves = [value.detach().requires_grad_() for value in inputs]
    result = function(*leaves)
    return result.detach(), *torch.autograd.grad(result, leaves, grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_rows_come_back_as_with_torchs_ops(device, sizes, dtype):
    rows, weights, order, inverse, grad = make_rows(device, dtype, *sizes)
    for given in (grad, grad[:, :1].expand_as(grad), grad.t().contiguous().t()):
        fused, plain = (
            differentiate(lambda r, w, k=k: combine_rows(r, w, order, inverse, kernels=k), rows, weights, grad=given)
            for k in ("fused", "plain")
        )
        for found, expected in zip(fused, plain, strict=True):
            assert found.is_contiguous()
            close(found, expected)
    close(COMBINE_ROWS(rows, weights, inverse), reference_combine_rows(rows, weights, inverse))
    made = COMBINE_ROWS_BACKWARD(grad, rows, weights, order, inverse)
    for found, expected in zip(made, reference_combine_rows_backward(grad, rows, weights, order, inverse), strict=True):
        assert found.is_contiguous()
        close(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("device", [CPU, GPU])
def test_a_tokens_copies_go_backward_as_with_torchs_ops(device, sizes, dtype):
    rows, weights, order, inverse, x = make_rows(device, dtype, *sizes)
    spread = partial(spread_rows, order=order, inverse=inverse, top_k=weights.shape[1])
    fused, plain = (differentiate(partial(spread, kernels=kernels), x, grad=rows) for kernels in ("fused", "plain"))
    assert torch.equal(fused[0], plain[0])
    close(fused[1], plain[1])
    indices = inverse.view(weights.shape)
    close(SUM_ROWS(rows.t().contiguous().t(), indices), reference_sum_rows(rows, indices))


@pytest.mark.parametrize("device", [CPU, GPU])
def test_no_tokens_give_no_rows(device):
    rows, weights, order, inverse, grad = make_rows(device, torch.bfloat16, 0, 3, 8)
    assert COMBINE_ROWS(rows, weights, inverse).shape == (0, 8)
    assert SUM_ROWS(rows, inverse.view(0, 3)).shape == (0, 8)
    of_rows, of_weights = COMBINE_ROWS_BACKWARD(grad, rows, weights, order, inverse)
    assert of_rows.shape == (0, 8) and of_weights.shape == (0, 3)


@pytest.mark.parametrize("device", [CPU, GPU])
def test_sums_are_rounded_once(device):
    rows = torch.tensor([[256.0], [1.0], [1.0], [1.0], [1.0]]).bfloat16().to(device)
    order = torch.arange(5, device=device)
    assert COMBINE_ROWS(rows, torch.ones(1, 5, device=device), order).item() == 260.0  # bf16 would stay at 256
    assert SUM_ROWS(rows, order.view(1, 5)).item() == 260.0
    weights = torch.tensor([[1 + 2**-9, 1.0]], device=device)  # the first is 1 in bf16
    rows = torch.tensor([[1.0], [-1.0]]).bfloat16().to(device)
    assert COMBINE_ROWS(rows, weights, order[:2]).item() == 2**-9


def test_gradients_of_fused_rows_are_exact():
    rows, weights, order, inverse, x = (
        value.double() if value.is_floating_point() else value for value in make_rows(CPU, torch.float32, 4, 3, 5)
    )
    inputs = [value.requires_grad_() for value in (x, rows, weights)]

    def there_and_back(x, rows, weights):
        sent = spread_rows(x, order, inverse, 3, kernels="fused")
        return combine_rows(sent * rows, weights, order, inverse, kernels="fused")

    assert torch.autograd.gradcheck(there_and_back, inputs)


@pytest.mark.gpu
def test_rows_have_the_same_bits_every_time():
    rows, weights, order, inverse, grad = make_rows(torch.device("cuda"), torch.bfloat16, 500, 6, 2048)

    def run():
        sums = COMBINE_ROWS(rows, weights, inverse), SUM_ROWS(rows, inverse.view(500, 6))
        return *sums, *COMBINE_ROWS_BACKWARD(grad, rows, weights, order, inverse)

    assert all(map(torch.equal, run(), run()))


def test_fake_tensors_promise_what_ops_on_rows_return():
    check = partial(torch.library.opcheck, test_utils=("test_schema", "test_faketensor"))
    for dtype in DTYPES:
        rows, weights, order, inverse, grad = make_rows(CPU, dtype, 5, 3, 7)
        check(COMBINE_ROWS, (rows, weights, inverse))
        check(COMBINE_ROWS_BACKWARD, (grad, rows, weights, order, inverse))
        check(SUM_ROWS, (rows.t().contiguous().t(), inverse.view(5, 3)))


@pytest.mark.parametrize("kernels", ["fused", "plain"])
def test_a_dispatcher_computes_as_it_is_told(kernels):
    x = torch.randn(6, 4).requires_grad_()
    dispatch, experts = LocalDispatch(kernels=kernels), torch.arange(12).view(6, 2) % 3
    with torch.profiler.profile() as profile:
        routed = dispatch.dispatch(x, experts, 3)
        dispatch.combine(routed.rows.sin(), torch.rand(6, 2), routed).sum().backward()
    called = {event.name for event in profile.events() if event.name.startswith("monograph::")}
    ops = {"monograph::combine_rows", "monograph::combine_rows_backward", "monograph::sum_rows"}
    assert called == (ops if kernels == "fused" else set())
