"""Auxiliary losses of the router: their published formulas, their gradients, and what their scopes depend on."""

import pytest
import torch
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

from monograph.errors import ConfigError
from monograph.models.config import MoeConfig, RouterConfig
from monograph.models.load_balance import LoadBalance, RouterStats, count_choices, sum_weighted
from monograph.models.load_balance_config import LoadBalanceConfig
from monograph.models.router import Choice
from tests.kit.small import batch, build, small_deepseek_v3, small_qwen3

SEQUENCES, LENGTH, EXPERTS, TOP_K, GROUPS, TOP_GROUPS = 3, 10, 8, 3, 4, 2


def route(logits: torch.Tensor, moe: MoeConfig) -> Choice:
    """Choose by the scores alone, as a router without groups does."""
    scores = logits.sigmoid() if moe.router.score == "sigmoid" else logits.softmax(-1)
    experts = scores.topk(moe.router.top_k, dim=-1).indices
    return Choice(experts, scores.gather(1, experts), scores, logits)


def make_moe(*, score="softmax", **balance) -> MoeConfig:
    router = RouterConfig(top_k=TOP_K, score=score, n_groups=GROUPS, top_groups=TOP_GROUPS)
    return MoeConfig(n_experts=EXPERTS, hidden_dim=4, router=router, balance=LoadBalanceConfig(**balance))


def make_logits(layers=1, seed=0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [(2 * torch.randn(SEQUENCES * LENGTH, EXPERTS, generator=generator)).requires_grad_() for _ in range(layers)]


def compute(logits: list[torch.Tensor], moe: MoeConfig, sequences: int = SEQUENCES) -> dict[str, torch.Tensor]:
    """The losses of layers with these gate logits."""
    balance: LoadBalance = moe.balance.build(router=moe.router, n_experts=EXPERTS)
    return balance(count(logits, moe), LENGTH, torch.tensor(sequences))


def count(logits: list[torch.Tensor], moe: MoeConfig, rows: int = SEQUENCES) -> list[RouterStats]:
    load = torch.zeros(EXPERTS, dtype=torch.int64)
    return [count_choices(route(each, moe), load, moe, rows=rows) for each in logits]


def test_qwen3s_loss_is_the_one_transformers_computes():
    moe = make_moe(coefficient=1.0, scope="micro_batch", times_top_k=True)
    (logits,) = make_logits()
    ours = compute([logits], moe)["load_balancing_loss"].sum()
    theirs = load_balancing_loss_func((logits,), EXPERTS, TOP_K)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(ours, logits), torch.autograd.grad(theirs, logits), rtol=1e-5, atol=1e-8
    )


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_deepseeks_losses_are_the_published_sums(score):
    """Written as in the papers: V2's expert, device and communication balance, and V3's normalized sigmoid."""
    moe = make_moe(score=score, coefficient=1.0, group_coefficient=1.0, group_traffic_coefficient=1.0)
    (logits,) = make_logits()
    found = compute([logits], moe)
    expert_loss = device_loss = traffic_loss = 0.0
    for rows in logits.view(SEQUENCES, LENGTH, EXPERTS):
        choice = route(rows, moe)
        probabilities = choice.scores / choice.scores.sum(-1, keepdim=True)
        mean_score = [probabilities[:, i].sum() / LENGTH for i in range(EXPERTS)]
        share = [(choice.experts == i).sum() * EXPERTS / (TOP_K * LENGTH) for i in range(EXPERTS)]
        expert_loss += sum(f * p for f, p in zip(share, mean_score, strict=True))
        for group in range(GROUPS):
            members = range(group * EXPERTS // GROUPS, (group + 1) * EXPERTS // GROUPS)
            group_score = sum(mean_score[i] for i in members)
            device_loss += sum(share[i] for i in members) / len(members) * group_score
            sent = sum(any(i in members for i in token) for token in choice.experts.tolist())
            traffic_loss += sent * GROUPS / (TOP_GROUPS * LENGTH) * group_score
    expected = {
        "load_balancing_loss": expert_loss,
        "group_balancing_loss": device_loss,
        "group_traffic_loss": traffic_loss,
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name][0], value / SEQUENCES, rtol=1e-5, atol=0, msg=name)


def test_the_z_loss_is_the_mean_square_of_the_log_sum_exp():
    logits = make_logits(2)
    found = compute(logits, make_moe(z_coefficient=1.0))["router_z_loss"]
    expected = torch.stack([each.exp().sum(-1).log().pow(2).mean() for each in logits])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("scope", ["sequence", "micro_batch", "global"])
def test_an_even_load_costs_the_coefficient_and_any_other_more(scope):
    moe = make_moe(coefficient=0.25, scope=scope)
    turns = torch.arange(SEQUENCES * 16 * TOP_K).view(-1, TOP_K) % EXPERTS  # every expert equally often
    scores = torch.full((SEQUENCES * 16, EXPERTS), 1 / EXPERTS)
    even = Choice(turns, scores.gather(1, turns), scores, scores.log())
    stats = count_choices(even, torch.zeros(EXPERTS), moe, rows=SEQUENCES)
    balance = moe.balance.build(router=moe.router, n_experts=EXPERTS)
    loss = balance([stats], 16, torch.tensor(SEQUENCES))
    torch.testing.assert_close(sum_weighted(loss, balance.coefficients), torch.tensor(0.25))
    uneven = compute(make_logits(), moe)
    assert sum_weighted(uneven, balance.coefficients) > 0.25


def test_a_collapsed_router_is_pushed_towards_the_experts_it_neglects():
    logits = torch.zeros(SEQUENCES * LENGTH, EXPERTS)
    logits[:, :TOP_K] = 3.0
    logits.requires_grad_()
    compute([logits], make_moe(coefficient=1.0))["load_balancing_loss"].sum().backward()
    assert (logits.grad[:, :TOP_K] > 0).all(), "descent lowers the scores of experts that get every token"
    assert (logits.grad[:, TOP_K:] < 0).all(), "and raises those of the others"


def test_only_the_scope_sequence_is_independent_of_how_a_batch_is_divided():
    (logits,) = make_logits()
    apart = logits.view(SEQUENCES, LENGTH, EXPERTS).unbind()
    for scope, is_equal in (("sequence", True), ("micro_batch", False)):
        moe = make_moe(coefficient=1.0, scope=scope)
        balance = moe.balance.build(router=moe.router, n_experts=EXPERTS)
        divisor = torch.tensor(SEQUENCES)
        whole = balance(count([logits], moe), LENGTH, divisor)["load_balancing_loss"]
        shares = [balance(count([rows], moe, rows=1), LENGTH, divisor)["load_balancing_loss"] for rows in apart]
        assert torch.allclose(whole, sum(shares), rtol=1e-6) == is_equal, scope


def test_slices_of_a_sequence_with_whole_counts_add_up_to_the_whole():
    """What tensor parallelism and chunking along the sequence rely on."""
    moe = make_moe(coefficient=1.0, group_traffic_coefficient=1.0, z_coefficient=1.0)
    (logits,) = make_logits()
    (whole,) = count([logits], moe)
    halves = logits.view(SEQUENCES, 2, LENGTH // 2, EXPERTS).unbind(1)
    parts = [count([half.flatten(0, 1)], moe)[0] for half in halves]
    assert torch.equal(parts[0].counts + parts[1].counts, whole.counts)
    balance = moe.balance.build(router=moe.router, n_experts=EXPERTS)
    expected = balance([whole], LENGTH, torch.tensor(SEQUENCES))
    balance.sum_counts = lambda _: whole.counts.unsqueeze(0)
    shares = [balance([part], LENGTH, torch.tensor(SEQUENCES)) for part in parts]
    for name, value in expected.items():
        torch.testing.assert_close(shares[0][name] + shares[1][name], value, rtol=1e-6, atol=0, msg=name)


@pytest.mark.parametrize("small", [small_qwen3, small_deepseek_v3])
def test_the_objective_is_the_loss_plus_the_weighted_losses_of_all_layers(small):
    config = small()
    config.moe.balance = LoadBalanceConfig(coefficient=0.5, z_coefficient=0.25)
    plain, model = build(small()), build(config)
    tokens, labels = batch()
    without, output = plain(tokens, labels), model(tokens, labels)
    assert torch.equal(output.loss, without.loss), "the reported loss stays the cross entropy"
    assert without.objective is without.loss and without.metrics.keys() == {"expert_load"}
    metrics = output.metrics
    assert metrics["load_balancing_loss"].shape == metrics["router_z_loss"].shape == (2,)
    added = 0.5 * metrics["load_balancing_loss"].sum() + 0.25 * metrics["router_z_loss"].sum()
    torch.testing.assert_close(metrics["aux_loss"], added, rtol=1e-6, atol=0)
    torch.testing.assert_close(output.objective - output.loss, added, rtol=1e-4, atol=1e-6)
    output.objective.backward()
    without.loss.backward()
    gates = [
        [block.moe.router.gate.weight.grad for block in each.blocks().values() if block.moe] for each in (plain, model)
    ]
    assert all(not torch.equal(*pair) for pair in zip(*gates, strict=True))


def test_evaluation_computes_no_auxiliary_losses():
    config = small_qwen3()
    config.moe.balance = LoadBalanceConfig(coefficient=0.5)
    with torch.no_grad():
        assert build(config)(*batch()).metrics.keys() == {"expert_load"}


@pytest.mark.parametrize(
    ("balance", "words"),
    [
        ({"coefficient": -0.1}, "coefficient is -0.1"),
        ({"z_coefficient": -1.0}, "z_coefficient is -1.0"),
        ({"scope": "global"}, "scope is global and every balance coefficient is 0"),
        ({"times_top_k": True, "group_coefficient": 0.1}, "times_top_k is on and coefficient is 0"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(balance, words):
    with pytest.raises(ConfigError, match=words):
        LoadBalanceConfig(**balance).check()


@pytest.mark.parametrize("name", ["group_coefficient", "group_traffic_coefficient"])
def test_balance_between_groups_needs_groups(name):
    moe = MoeConfig(n_experts=8, hidden_dim=4, balance=LoadBalanceConfig(**{name: 0.1}))
    with pytest.raises(ConfigError, match=rf"balance\.{name} is 0\.1 and router\.n_groups is 1"):
        moe.check()
