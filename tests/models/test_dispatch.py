"""Dispatch and combine: every token reaches its experts and comes back, with exact gradients and the same bits."""

import pytest
import torch

from monograph.kernels.expert_rows import combine_rows, spread_rows
from monograph.models.dispatch import LocalDispatch

TOKENS, TOP_K, EXPERTS, DIM = 13, 3, 6, 5


def random_choice(seed: int = 0) -> torch.Tensor:
    """Different experts for every token; expert 4 gets none."""
    generator = torch.Generator().manual_seed(seed)
    open_experts = torch.tensor([0, 1, 2, 3, 5])
    return torch.stack([open_experts[torch.randperm(5, generator=generator)[:TOP_K]] for _ in range(TOKENS)])


def test_rows_are_sorted_by_expert_and_every_choice_is_there_once():
    experts, x = random_choice(), torch.arange(TOKENS * DIM).view(TOKENS, DIM).float()
    routed = LocalDispatch().dispatch(x, experts, EXPERTS)
    assert routed.ends.dtype == torch.int32 and routed.load.dtype == torch.int64
    start = 0
    for expert, end in enumerate(routed.ends.tolist()):
        tokens = [token for token in range(TOKENS) if expert in experts[token].tolist()]
        assert torch.equal(routed.rows[start:end], x[tokens])
        assert routed.load[expert] == len(tokens)
        start = end
    assert start == TOKENS * TOP_K and routed.load[4] == 0


def test_combine_is_the_weighted_sum_of_a_tokens_rows():
    generator = torch.Generator().manual_seed(1)
    experts, x = random_choice(), torch.randn(TOKENS, DIM, generator=generator)
    weights = torch.rand(TOKENS, TOP_K, generator=generator)
    dispatch = LocalDispatch()
    routed = dispatch.dispatch(x, experts, EXPERTS)
    owners = torch.repeat_interleave(torch.arange(EXPERTS), routed.load)
    answers = routed.rows * (owners + 1).unsqueeze(-1)
    expected = torch.stack(
        [sum(weights[t, k] * (experts[t, k] + 1) * x[t] for k in range(TOP_K)) for t in range(TOKENS)]
    )
    torch.testing.assert_close(dispatch.combine(answers, weights, routed), expected, rtol=1e-6, atol=1e-6)


def test_gradients_of_the_permutations_are_exact():
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(TOKENS, DIM, dtype=torch.float64, generator=generator, requires_grad=True)
    weights = torch.rand(TOKENS, TOP_K, dtype=torch.float64, generator=generator, requires_grad=True)
    rows = torch.randn(TOKENS * TOP_K, DIM, dtype=torch.float64, generator=generator, requires_grad=True)
    routed = LocalDispatch().dispatch(x, random_choice(), EXPERTS)
    order, inverse = routed.order, routed.inverse
    assert torch.autograd.gradcheck(lambda x: spread_rows(x, order, inverse, TOP_K), (x,))
    assert torch.autograd.gradcheck(lambda r, w: combine_rows(r, w, order, inverse), (rows, weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_gives_the_same_bits_every_time(dtype):
    def run():
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(TOKENS, DIM, generator=generator).to(dtype).requires_grad_()
        weights = torch.rand(TOKENS, TOP_K, generator=generator).requires_grad_()
        dispatch = LocalDispatch()
        routed = dispatch.dispatch(x, random_choice(), EXPERTS)
        out = dispatch.combine(routed.rows.sin(), weights, routed)
        out.float().square().sum().backward()
        return out, x.grad, weights.grad

    first = run()
    assert first[0].dtype == dtype and first[1].dtype == dtype and first[2].dtype == torch.float32
    assert all(torch.equal(a, b) for _ in range(3) for a, b in zip(first, run(), strict=True))


def test_bf16_rows_are_weighted_and_summed_in_fp32():
    order = torch.arange(5)
    rows = torch.tensor([[256.0], [1.0], [1.0], [1.0], [1.0]]).bfloat16()
    assert combine_rows(rows, torch.ones(1, 5), order, order).item() == 260.0  # bf16 would stay at 256
    rows = torch.tensor([[1.0], [-1.0]]).bfloat16()
    weights = torch.tensor([[1 + 2**-9, 1.0]])  # the first is 1 in bf16
    assert combine_rows(rows, weights, order[:2], order[:2]).item() == 2**-9
