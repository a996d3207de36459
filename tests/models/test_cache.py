"""Prediction with a cache: token by token it says what the whole text says at once."""

import pytest
import torch

from monograph.models.attention_kind import AttentionKind
from monograph.models.cache import DecoderCache
from monograph.models.init import reset
from monograph.recipes.catalog import load_recipe

FAMILIES = (
    "llama3_debugmodel",
    "qwen2_5_debugmodel",
    "qwen3_debugmodel",
    "qwen3_debugmodel_moe",
    "deepseek_v3_debugmodel",
    "gpt_oss_debugmodel",
    "llama4_debugmodel",
    "mistral_debugmodel",
    "gemma2_debugmodel",
    "gemma3_debugmodel",
)
WINDOW, CHUNK = AttentionKind("window", window=5), AttentionKind("chunk", chunk=4)
CAPACITY = 24


def build(recipe, kinds=()):
    """A small random model in fp64, where rounding cannot hide a mistake; `kinds` of attention replace its own."""
    config = load_recipe(recipe).model
    every = {"llama4_debugmodel": 4, "gemma3_debugmodel": 6}  # layers, of which one has no RoPE or no window
    config.n_layers = every.get(recipe, 2)
    config.loss.chunk_tokens = 8
    if hasattr(config, "window"):
        config.window = 5
    if hasattr(config, "n_dense_layers"):
        config.n_dense_layers = 1
    model = config.build()
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2 if parameter.dim() > 1 else 1.0)
    reset(model)
    model = model.double().eval()
    for number, kind in enumerate(kinds):
        model.kinds[number] = kind
        model.layers[number].attention.attend.kind = kind
    return model


@pytest.mark.parametrize("recipe", FAMILIES)
@torch.no_grad()
def test_tokens_one_by_one_have_the_logits_of_the_whole_text(recipe):
    model = build(recipe)
    check(model, model.kinds)


@pytest.mark.parametrize("recipe", ["llama3_debugmodel", "deepseek_v3_debugmodel"])
@torch.no_grad()
def test_a_cache_respects_windows_and_chunks(recipe):
    model = build(recipe, (WINDOW, CHUNK))
    check(model, model.kinds)


def check(model, kinds):
    """The router computes in fp32 in any case, which is what models with experts may differ by.

    Read 9 tokens, then 3 at once, then one at a time; rows begin with padding of different lengths."""
    tokens = torch.randint(0, model.config.vocab_size, (3, 20), generator=torch.Generator().manual_seed(1))
    padding, limit = (0, 2, 7), 1e-9 if model.config.find_moe() is None else 1e-4
    cache = model.new_cache(3, CAPACITY, padding)
    found = [model.predict(tokens[:, :9], cache=cache), model.predict(tokens[:, 9:12], cache=cache)]
    found += [model.predict(tokens[:, index : index + 1], cache=cache) for index in range(12, 20)]
    found = torch.cat(found, dim=1)
    for row, skipped in enumerate(padding):
        whole = model.predict(tokens[row : row + 1, skipped:])
        assert (found[row, skipped:] - whole[0]).abs().max() < limit, (row, kinds)


@torch.no_grad()
def test_sinks_take_the_same_share_with_and_without_a_cache():
    torch.manual_seed(0)
    model = build("llama3_debugmodel")
    attend = model.layers[0].attention.attend
    q, k, v = torch.randn(2, 6, 4, 8).double(), torch.randn(2, 6, 2, 8).double(), torch.randn(2, 6, 2, 8).double()
    sinks = torch.randn(4).double()
    whole = attend(q, k, v, None, sinks)
    cache = DecoderCache([attend.kind], batch=2, capacity=6, device=torch.device("cpu"), padding=())
    parts = []
    for piece in (slice(0, 3), slice(3, 5), slice(5, 6)):
        parts.append(attend(q[:, piece], k[:, piece], v[:, piece], None, sinks, cache.layers[0]))
        cache.advance(piece.stop - piece.start)
    assert torch.allclose(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_latent_attention_keeps_latents_and_not_keys_of_every_head():
    model = build("deepseek_v3_debugmodel")
    cache = model.new_cache(1, CAPACITY)
    model.predict(torch.zeros(1, 4, dtype=torch.int64), cache=cache)
    attention = model.config.attention
    kept = sum(part.shape[-1] for part in cache.layers[0]._parts)
    assert kept == attention.kv_lora_rank + attention.qk_rope_head_dim


def test_a_model_that_sees_later_tokens_has_no_cache():
    model = build("llama3_debugmodel", (AttentionKind("full", causal=False),))
    assert model.new_cache(1, 8) is None
