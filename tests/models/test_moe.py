"""Experts as a layer, their counters, and the even load."""

import pytest
import torch

from monograph.models.config import ExpertsConfig, MoeConfig, ResidualSpec, RouterConfig
from monograph.models.freeze import freeze
from monograph.models.hf_families import find_family
from monograph.models.init import initialize
from monograph.models.load_balance import update_expert_bias
from tests.kit.small import batch, build, small_deepseek_v3, small_llama3, small_qwen3

RESIDUAL = ResidualSpec(dim=16, norm_eps=1e-6, init_std=0.4, out_std=0.4)


def make(**values):
    config = MoeConfig(n_experts=4, hidden_dim=8, n_shared_experts=2, **values)
    moe = config.build(residual=RESIDUAL)
    initialize(moe, 0)
    return moe


def test_a_layer_is_the_weighted_sum_of_its_experts_plus_the_shared_ones():
    moe = make(router=RouterConfig(top_k=2), experts=ExpertsConfig(backend="loop"))
    x = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(0))
    out, stats = moe(x)
    experts, weights, *_ = moe.router(x.view(-1, 16))
    rows = []
    for token, chosen, shares in zip(x.view(-1, 16), experts, weights, strict=True):
        answers = [moe.experts(token[None], (torch.arange(4) >= e).to(torch.int32))[0] for e in chosen]
        rows.append(sum(share * answer for share, answer in zip(shares, answers, strict=True)))
    expected = torch.stack(rows).view_as(x) + moe.shared_experts(x)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
    assert moe.shared_experts.w1.weight.shape == (16, 16)
    assert torch.equal(stats.load, torch.bincount(experts.flatten(), minlength=4))


def test_loads_count_every_token_top_k_times_in_every_layer_with_experts():
    config = small_deepseek_v3()
    model = build(config)
    tokens, labels = batch()
    loads = model(tokens, labels).metrics["expert_load"]
    assert loads.shape == (2, 8) and loads.dtype == torch.int64
    assert loads.sum(dim=1).tolist() == [tokens.numel() * 3] * 2


def test_recomputed_blocks_report_the_same_load():
    model = build(small_qwen3())
    tokens, labels = batch()

    def call_again(module, *args):
        if not args or not args[0].is_floating_point():
            return module(*args)
        return torch.utils.checkpoint.checkpoint(module, *args, use_reentrant=False)

    plain, again = model(tokens, labels), model(tokens, labels, call=call_again)
    again.loss.backward()
    assert torch.equal(plain.metrics["expert_load"], again.metrics["expert_load"])
    assert torch.equal(plain.loss, again.loss)


def test_dense_models_have_no_metrics_of_experts():
    assert build(small_llama3())(*batch()).metrics == {}


def test_the_bias_moves_by_the_sign_of_the_missing_load_less_its_mean():
    model = build(small_deepseek_v3())
    loads = torch.tensor([[10, 10, 10, 10, 10, 10, 10, 50], [0, 4, 2, 2, 2, 2, 2, 2]])
    update_expert_bias(model, loads, 0.5)
    signs = torch.tensor([[1.0] * 7 + [-1.0], [1.0, -1.0] + [0.0] * 6])
    expected = 0.5 * (signs - signs.mean(dim=1, keepdim=True))
    found = torch.stack([model.layers[layer].moe.router.expert_bias for layer in (1, 2)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)
    update_expert_bias(model, torch.full((2, 8), 7), 0.5)
    assert torch.equal(found, torch.stack([model.layers[layer].moe.router.expert_bias for layer in (1, 2)]))


def test_a_rate_of_zero_freezes_biases():
    model = build(small_deepseek_v3())
    update_expert_bias(model, torch.arange(16).view(2, 8), 0.0)
    assert (model.layers[1].moe.router.expert_bias == 0).all()


def test_an_imported_model_keeps_its_selection_biases_while_it_is_trained_on():
    family = find_family("deepseek_v3")
    model = build(family.from_hf_config(family.to_hf_config(small_deepseek_v3())))
    assert find_bias_moves(model) == 0
    model.config.moe.router.bias_update_rate = 0.01  # asked for by a flag
    assert find_bias_moves(model) > 0


def test_a_frozen_router_keeps_its_selection_biases():
    model = build(small_deepseek_v3())
    freeze(model, ["layers.1.moe.*"])
    other = model.layers[2].moe.router.expert_bias.clone()
    assert find_bias_moves(model) == 0
    assert not torch.equal(model.layers[2].moe.router.expert_bias, other), "that of another layer moves"


def find_bias_moves(model) -> float:
    """How far an update moves the biases of the first router."""
    bias = model.layers[1].moe.router.expert_bias
    before = bias.clone()
    model.finish_update(model(*batch()).metrics)
    return (bias - before).abs().max().item()


def test_updating_the_bias_evens_out_the_load():
    config = small_deepseek_v3()
    config.moe.router.n_groups = config.moe.router.top_groups = 1
    model = build(config, seed=3)
    for layer in (1, 2):
        model.layers[layer].moe.router.expert_bias[:2] += 0.3  # far from even, whatever was drawn
    tokens, _ = batch(8, 64)

    def spread(loads):
        return (loads.max(dim=1).values / loads.float().mean(dim=1)).mean().item()

    first = spread(model(tokens, tokens).metrics["expert_load"])
    for _ in range(100):
        with torch.no_grad():
            loads = model(tokens, tokens).metrics["expert_load"]
        update_expert_bias(model, loads, 0.01)
    assert first > 1.5
    assert spread(loads) < 1 + (first - 1) / 3


@pytest.mark.parametrize("make_config", [small_qwen3, small_deepseek_v3])
def test_bias_and_counter_are_what_a_checkpoint_needs(make_config):
    model = build(make_config())
    kept = model.state_dict().keys()
    assert "expert_load" not in kept
    has_bias = any(name.endswith("router.expert_bias") for name in kept)
    assert has_bias == model.config.moe.router.expert_bias
    assert not any("rope" in name for name in kept)
