"""Models of a few thousand parameters, one of each kind, for tests."""

import torch

from monograph.models.config import (
    AttentionConfig,
    DecoderConfig,
    FeedForwardConfig,
    LatentAttentionConfig,
    LossConfig,
    MoeConfig,
    RopeConfig,
    RouterConfig,
)
from monograph.models.decoder import Decoder
from monograph.models.deepseek_v3.config import DeepseekV3Config
from monograph.models.gemma2.config import GegluConfig, Gemma2Config, GemmaAttentionConfig
from monograph.models.init import initialize, materialize
from monograph.models.llama3.config import Llama3Config
from monograph.models.mistral.config import MistralConfig
from monograph.models.qwen3.config import Qwen3Config

VOCAB = 64


def small_llama3(**changes) -> Llama3Config:
    values = {
        "vocab_size": VOCAB,
        "dim": 32,
        "n_layers": 2,
        "init_std": 0.2,
        "rope": RopeConfig(max_seq_len=64),
        "loss": LossConfig(chunk_tokens=24),
        "attention": AttentionConfig(n_heads=4, n_kv_heads=2),
        "feed_forward": FeedForwardConfig(hidden_dim=48),
    }
    return Llama3Config(**{**values, **changes})


def small_qwen3(**changes) -> Qwen3Config:
    values = {
        "vocab_size": VOCAB,
        "dim": 32,
        "n_layers": 2,
        "init_std": 0.2,
        "tied_embeddings": True,
        "rope": RopeConfig(max_seq_len=64),
        "loss": LossConfig(chunk_tokens=24),
        "attention": AttentionConfig(n_heads=4, n_kv_heads=2, head_dim=16, qk_norm=True),
        "feed_forward": FeedForwardConfig(hidden_dim=48),
        "moe": MoeConfig(n_experts=4, hidden_dim=32, router=RouterConfig(top_k=2)),
    }
    return Qwen3Config(**{**values, **changes})


def small_mistral(**changes) -> MistralConfig:
    values = {
        "vocab_size": VOCAB,
        "dim": 32,
        "n_layers": 2,
        "init_std": 0.2,
        "window": 6,
        "rope": RopeConfig(max_seq_len=64),
        "loss": LossConfig(chunk_tokens=24),
        "attention": AttentionConfig(n_heads=4, n_kv_heads=2, head_dim=12),
        "feed_forward": FeedForwardConfig(hidden_dim=48),
    }
    return MistralConfig(**{**values, **changes})


def small_gemma2(**changes) -> Gemma2Config:
    values = {
        "vocab_size": VOCAB,
        "dim": 32,
        "n_layers": 3,
        "init_std": 0.2,
        "window": 6,
        "logit_cap": 3.0,
        "rope": RopeConfig(max_seq_len=64),
        "loss": LossConfig(chunk_tokens=24),
        "attention": GemmaAttentionConfig(n_heads=4, n_kv_heads=2, head_dim=12, score_dim=20.0, score_cap=2.0),
        "feed_forward": GegluConfig(hidden_dim=48),
    }
    return Gemma2Config(**{**values, **changes})


def small_deepseek_v3(**changes) -> DeepseekV3Config:
    values = {
        "vocab_size": VOCAB,
        "dim": 32,
        "n_layers": 3,
        "init_std": 0.2,
        "n_dense_layers": 1,
        "rope": RopeConfig(
            max_seq_len=64,
            layout="interleaved",
            scaling="yarn",
            factor=2.0,
            original_max_seq_len=32,
            mscale_all_dim=1.0,
        ),
        "loss": LossConfig(chunk_tokens=24),
        "attention": LatentAttentionConfig(
            n_heads=2, q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16
        ),
        "feed_forward": FeedForwardConfig(hidden_dim=48),
        "moe": MoeConfig(
            n_experts=8,
            hidden_dim=16,
            n_shared_experts=1,
            router=RouterConfig(
                top_k=3, score="sigmoid", n_groups=4, top_groups=2, scale=1.5, expert_bias=True, bias_update_rate=0.01
            ),
        ),
    }
    return DeepseekV3Config(**{**values, **changes})


SMALL = {"llama3": small_llama3, "qwen3": small_qwen3, "deepseek_v3": small_deepseek_v3}


def build(config: DecoderConfig, *, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 0) -> Decoder:
    """The model as a trainer builds it: on meta first, then given memory and values."""
    with torch.device("meta"):
        model = config.build()
    materialize(model, device=device, dtype=dtype)
    initialize(model, seed)
    return model


def batch(rows: int = 2, seq_len: int = 32, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and labels, some of them ignored."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (rows, seq_len), generator=generator)
    labels = torch.randint(0, VOCAB, (rows, seq_len), generator=generator)
    labels[torch.rand(rows, seq_len, generator=generator) < 0.2] = -100
    return tokens, labels
