"""Ops of gpt_oss: numerical gradients of attention with sinks, of the clamped SwiGLU and of experts' biases."""

import pytest
import torch

from monograph.kernels.attention import attention
from monograph.kernels.clamped_swiglu import (
    CLAMPED_SWIGLU,
    CLAMPED_SWIGLU_BACKWARD,
    clamped_swiglu,
    fused_clamped_swiglu,
    reference_clamped_swiglu,
    reference_clamped_swiglu_backward,
)
from monograph.kernels.expert_bias import add_expert_bias


def draw(*shape, seed=0):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("has_documents", [False, True])
def test_sinks_have_the_gradients_of_finite_differences(window, causal, has_documents):
    q, k, v = draw(1, 6, 4, 2), draw(1, 6, 2, 2, seed=1), draw(1, 6, 2, 2, seed=2)
    sinks = draw(4, seed=3)
    table = torch.tensor([[[0, 4, 6], [0, 4, 6]]], dtype=torch.int32) if has_documents else None

    def attend(*inputs):
        return attention(*inputs[:3], table, inputs[3], scale=0.7, causal=causal, window=window)

    assert torch.autograd.gradcheck(attend, (q, k, v, sinks))


def test_sinks_of_minus_infinity_change_nothing_and_large_ones_take_everything():
    q, k, v = draw(1, 6, 4, 2), draw(1, 6, 2, 2, seed=1), draw(1, 6, 2, 2, seed=2)
    without = attention(q, k, v, scale=0.7)
    small = attention(q, k, v, None, torch.full((4,), -1e4, dtype=torch.float64), scale=0.7)
    large = attention(q, k, v, None, torch.full((4,), 1e4, dtype=torch.float64), scale=0.7)
    torch.testing.assert_close(small, without, rtol=1e-12, atol=1e-12)
    assert large.abs().max() == 0


@pytest.mark.parametrize("limit", [0.5, 7.0])
def test_the_clamped_swiglu_has_the_gradients_of_finite_differences(limit):
    pairs = draw(3, 16)
    near = (pairs.detach().abs() - limit).abs() < 1e-3
    assert not near.any(), "no value where the clamp has a kink"
    assert torch.autograd.gradcheck(lambda x: fused_clamped_swiglu(x, 1.702, limit), (pairs,))


def test_the_clamped_swiglu_is_its_published_formula_and_ends_at_the_limit():
    pairs = draw(4, 10)
    gate, up = pairs[:, ::2].clamp(max=1.0), pairs[:, 1::2].clamp(-1.0, 1.0)
    expected = (up + 1) * gate * torch.sigmoid(1.702 * gate)
    for kernels in ("plain", "fused"):
        torch.testing.assert_close(clamped_swiglu(pairs, alpha=1.702, limit=1.0, kernels=kernels), expected)
    far = torch.tensor([[50.0, 50.0], [50.0, -50.0], [-50.0, 50.0]], dtype=torch.float64, requires_grad=True)
    found = clamped_swiglu(far, alpha=1.702, limit=7.0, kernels="fused")
    (gradient,) = torch.autograd.grad(found.sum(), far)
    assert gradient[:2].eq(0).all(), "beyond the limit nothing changes"
    assert found[1].item() == pytest.approx(-6 * 7, rel=1e-4)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_clamped_swiglu_hides_no_nan_and_has_no_gradient_beyond_the_limit(device, dtype):
    nan, inf = float("nan"), float("inf")
    pairs = torch.tensor([[1.0, nan], [nan, 1.0], [nan, nan], [nan, 9.0], [9.0, nan], [1.0, 0.5], [inf, -inf]])
    pairs = pairs.to(device, dtype)
    found = CLAMPED_SWIGLU(pairs, 1.702, 1.5)
    assert found.isnan().flatten().tolist() == [True] * 5 + [False, False], "one number of the pair is enough"
    of_pairs = CLAMPED_SWIGLU_BACKWARD(torch.ones_like(found), pairs, 1.702, 1.5)
    wanted = [[True, False], [True, True], [True, True], [True, False], [False, False], [False, False], [False, False]]
    assert of_pairs.isnan().tolist() == wanted
    assert of_pairs[3, 1] == 0 and of_pairs[4, 0] == 0 and of_pairs[6].eq(0).all(), "beyond the limit nothing changes"
    assert of_pairs[5].ne(0).all()
    for one, other in (
        (found, reference_clamped_swiglu(pairs.cpu(), 1.702, 1.5)),
        (of_pairs, reference_clamped_swiglu_backward(torch.ones(7, 1).to(dtype), pairs.cpu(), 1.702, 1.5)),
    ):
        torch.testing.assert_close(one.cpu(), other, rtol=2e-2, atol=2e-2, equal_nan=True)


def test_expert_biases_have_the_gradients_of_finite_differences():
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    rows, bias = draw(5, 3), draw(3, 3, seed=1)
    assert torch.autograd.gradcheck(lambda r, b: add_expert_bias(r, b, ends), (rows, bias))
