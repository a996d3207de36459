"""The whole model: its tree, its units, its outputs."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from monograph.models.decoder import call_module
from tests.kit.small import SMALL, VOCAB, batch, build, small_deepseek_v3, small_qwen3


@pytest.mark.parametrize("family", SMALL)
def test_the_loss_is_the_cross_entropy_of_the_logits(family):
    model = build(SMALL[family]())
    tokens, labels = batch()
    logits, loss = model.predict(tokens), model(tokens, labels).loss
    assert logits.shape == (2, 32, VOCAB) and loss.shape == () and loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(logits.flatten(0, 1), labels.flatten()), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("family", SMALL)
def test_bf16_computes_and_stays_close_to_fp32(family):
    tokens, labels = batch()
    exact = build(SMALL[family]())
    model = build(SMALL[family](), dtype=torch.bfloat16)
    expected, found = exact(tokens, labels).loss, model(tokens, labels).loss
    assert found.dtype == torch.float32
    assert abs(found.item() - expected.item()) < 0.05
    found.backward()
    assert all(p.grad is not None and p.grad.dtype == torch.bfloat16 for p in model.parameters())
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("family", SMALL)
def test_every_parameter_gets_a_gradient(family):
    model = build(SMALL[family]())
    model(*batch()).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("family", SMALL)
def test_every_unit_runs_through_the_seam_once_and_in_order(family):
    model = build(SMALL[family]())
    seen = []

    def call(module, *args):
        seen.append(module)
        return module(*args)

    found = model(*batch(), call=call)
    assert seen == [model.embedding, *model.layers, model.head]
    assert torch.equal(found.loss, model(*batch(), call=call_module).loss)
    outside = {p for p in model.parameters()} - {p for unit in seen for p in unit.parameters()}
    assert not outside


@pytest.mark.parametrize("family", SMALL)
def test_the_seam_can_cast_each_unit_for_mixed_precision(family):
    model = build(SMALL[family]())

    def call(module, *args):
        cast = {name: p.to(torch.bfloat16) for name, p in module.named_parameters()}
        return torch.func.functional_call(module, cast, args)

    model(*batch(), call=call).loss.backward()
    low = build(SMALL[family](), dtype=torch.bfloat16)
    low(*batch()).loss.backward()
    for (name, found), expected in zip(model.named_parameters(), low.parameters(), strict=True):
        assert found.grad.dtype == torch.float32
        tied = name == "embedding.weight" and model.config.tied_embeddings
        if not tied:  # a tied weight sums its two gradients in fp32 here and in bf16 there
            assert torch.equal(found.grad, expected.grad.float()), name


def test_the_tree_has_the_paths_that_plans_and_maps_rely_on():
    names = {name for name, _ in build(small_deepseek_v3()).named_parameters()}
    block = {name.removeprefix("layers.2.") for name in names if name.startswith("layers.2.")}
    assert block == {
        "attention_norm.weight",
        *(f"attention.{part}.weight" for part in ("wq_a", "q_norm", "wq_b", "wkv_a", "kv_norm", "wkv_b", "wo")),
        "ffn_norm.weight",
        "moe.router.gate.weight",
        *(f"moe.experts.{w}" for w in ("w1", "w2", "w3")),
        *(f"moe.shared_experts.{w}.weight" for w in ("w1", "w2", "w3")),
    }
    dense = {name.removeprefix("layers.0.") for name in names if name.startswith("layers.0.feed")}
    assert dense == {f"feed_forward.{w}.weight" for w in ("w1", "w2", "w3")}
    rest = {name for name in names if not name.startswith("layers.")}
    assert rest == {"embedding.weight", "head.norm.weight", "head.output.weight"}
    qwen = {name.removeprefix("layers.0.attention.") for name, _ in build(small_qwen3()).named_parameters()}
    assert {f"{part}.weight" for part in ("wq", "wk", "wv", "wo", "q_norm", "k_norm")} <= qwen


def test_head_counts_follow_the_weights_so_that_a_shard_works():
    model = build(SMALL["llama3"]())
    attention = model.layers[0].attention
    x, rotation = torch.randn(1, 8, 32), model.rope(8)
    whole = attention(x, rotation)
    halves = []
    for half in range(2):
        shard = {
            **{f"{w}.weight": getattr(attention, w).weight.chunk(2)[half] for w in ("wq", "wk", "wv")},
            "wo.weight": attention.wo.weight.chunk(2, dim=1)[half],
        }
        halves.append(torch.func.functional_call(attention, shard, (x, rotation)))
    torch.testing.assert_close(halves[0] + halves[1], whole, rtol=1e-5, atol=1e-6)


def test_a_few_steps_learn_a_fixed_batch():
    for family in SMALL.values():
        model = build(family())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        losses = []
        for _ in range(15):
            loss = model(*batch()).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.5 * losses[0]


def test_a_decoder_whose_config_has_no_attention_section_has_tables_of_segments():
    model = build(small_qwen3())
    documents = torch.zeros(1, 32, dtype=torch.int64)
    tables = model.build_segments((1, 32), documents)
    model.config = SimpleNamespace(max_documents=model.config.max_documents)
    assert model.build_segments((1, 32), documents).keys() == tables.keys()
