"""The router: who is chosen, with which weights, and what a bias may change."""

import itertools

import pytest
import torch

from monograph.models.config import ResidualSpec, RouterConfig
from monograph.models.router import Router

RESIDUAL = ResidualSpec(dim=16, norm_eps=1e-6, init_std=0.5, out_std=0.5)
N = 8


def make(**values) -> Router:
    torch.manual_seed(0)
    router = RouterConfig(**values).build(n_experts=N, residual=RESIDUAL)
    router.gate.weight.data.normal_()
    if router.expert_bias is not None:
        router.expert_bias.normal_(std=0.3)
    return router


def choose_by_definition(router: Router, x: torch.Tensor) -> tuple[list[set[int]], torch.Tensor]:
    """Try every allowed set of experts for every token, in fp64."""
    config = router.config
    logits = x.double() @ router.gate.weight.double().T
    scores = logits.sigmoid() if config.score == "sigmoid" else logits.softmax(-1)
    biased = scores + (router.expert_bias.double() if router.expert_bias is not None else 0)
    size = N // config.n_groups
    chosen = []
    for token in biased:
        groups = [sorted(token[g * size : (g + 1) * size].tolist(), reverse=True) for g in range(config.n_groups)]
        standing = [group[0] if config.group_score == "max" else sum(group[:2]) for group in groups]
        best = max(
            itertools.combinations(range(config.n_groups), config.top_groups),
            key=lambda some: sum(standing[g] for g in some),
        )
        allowed = [e for e in range(N) if e // size in best or config.n_groups == 1]
        chosen.append(set(sorted(allowed, key=lambda e: token[e].item(), reverse=True)[: config.top_k]))
    return chosen, scores


@pytest.mark.parametrize(
    "values",
    [
        {"top_k": 2},
        {"top_k": 3, "score": "sigmoid", "norm": False, "scale": 2.5},
        {"top_k": 3, "score": "sigmoid", "expert_bias": True},
        {"top_k": 3, "n_groups": 4, "top_groups": 2, "group_score": "max", "norm": False, "scale": 16.0},
        {"top_k": 3, "n_groups": 4, "top_groups": 2, "score": "sigmoid", "expert_bias": True, "scale": 2.5},
    ],
    ids=["softmax", "sigmoid", "bias", "groups by best", "groups by two best, with bias"],
)
def test_choice_and_weights_follow_the_definition(values):
    router = make(**values)
    x = torch.randn(50, 16, generator=torch.Generator().manual_seed(1))
    choice = router(x)
    expected, scores = choose_by_definition(router, x)
    assert [set(row) for row in choice.experts.tolist()] == expected
    weights = scores.gather(1, choice.experts)
    if router.config.norm:
        weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(choice.weights.double(), weights * router.config.scale, rtol=1e-5, atol=1e-6)


def test_a_bias_changes_who_is_chosen_but_never_the_weight_of_the_chosen():
    router = make(top_k=1, score="sigmoid", norm=False, expert_bias=True)
    x = torch.randn(50, 16, generator=torch.Generator().manual_seed(1))
    router.expert_bias.zero_()
    router.expert_bias[3] = 10
    choice = router(x)
    assert (choice.experts == 3).all()
    assert torch.equal(choice.weights[:, 0], (x @ router.gate.weight.T).sigmoid()[:, 3].to(choice.weights.dtype))


def test_closed_groups_stay_closed_when_biases_are_very_negative():
    router = make(top_k=2, score="sigmoid", n_groups=4, top_groups=1, expert_bias=True)
    router.expert_bias.fill_(-100)
    experts = router(torch.randn(50, 16, generator=torch.Generator().manual_seed(1))).experts
    assert (experts[:, 0] // 2 == experts[:, 1] // 2).all()


def test_scores_are_computed_in_fp32_from_bf16():
    router = make(top_k=3).bfloat16()
    x = torch.randn(50, 16, generator=torch.Generator().manual_seed(1)).bfloat16()
    choice = router(x)
    expected = make(top_k=3)
    expected.gate.weight.data = router.gate.weight.data.float()
    assert choice.weights.dtype == torch.float32
    assert torch.equal(choice.weights, expected(x.float()).weights)


def test_the_gate_learns_and_the_bias_does_not():
    router = make(top_k=2, score="sigmoid", expert_bias=True)
    router(torch.randn(20, 16)).weights.square().sum().backward()
    assert router.gate.weight.grad.abs().sum() > 0
    assert "expert_bias" not in dict(router.named_parameters()) and "expert_bias" in router.state_dict()


def test_weights_of_vanishing_scores_stay_finite():
    router = make(top_k=2, score="sigmoid")
    router.gate.weight.data.fill_(-1000.0)
    weights = router(torch.ones(4, 16)).weights
    assert torch.isfinite(weights).all()


def test_forced_balance_deals_every_expert_the_same_number_of_tokens():
    router = make(top_k=3, force_balance=True)
    choice = router(torch.randn(16, 16))
    assert torch.bincount(choice.experts.flatten(), minlength=N).tolist() == [6] * N
    assert all(len(set(row)) == 3 for row in choice.experts.tolist())
    choice.weights.sum().backward()
