"""The parts that models are made of, for models of your own: what is named here is promised.

Each part has a Config, which builds it (`AttentionConfig(...).build(residual=..., rope=...)`), and says how its
parameters start, how it is sharded, and what it costs. docs/guides/own_model.md puts them together.
"""

from monograph.models.attention import Attention
from monograph.models.attention_kind import CAUSAL
from monograph.models.config import (
    AttentionConfig,
    DecoderConfig,
    ExpertsConfig,
    FeedForwardConfig,
    LatentAttentionConfig,
    LossConfig,
    MoeConfig,
    ResidualSpec,
    RopeConfig,
    RouterConfig,
)
from monograph.models.decoder import Block, Decoder, Head
from monograph.models.feed_forward import FeedForward
from monograph.models.hf_config import (
    check_read,
    read_head_dim,
    read_kv_heads,
    read_shared,
    write_shared,
)
from monograph.models.hf_map import Entry, HfFamily, NameRule, expand
from monograph.models.hf_reader import HfReader
from monograph.models.hf_rope import read_rope, write_rope
from monograph.models.init import Constant, InitSpec, Normal
from monograph.models.latent_attention import LatentAttention
from monograph.models.linear import Embedding, Linear
from monograph.models.loss import ChunkedCrossEntropy
from monograph.models.moe import Moe
from monograph.models.norm import RMSNorm, build_norm
from monograph.models.rope import Rope
from monograph.models.segments import build_segments

__all__ = [
    "CAUSAL",
    "Attention",
    "AttentionConfig",
    "Block",
    "ChunkedCrossEntropy",
    "Constant",
    "Decoder",
    "DecoderConfig",
    "Embedding",
    "Entry",
    "ExpertsConfig",
    "FeedForward",
    "FeedForwardConfig",
    "Head",
    "HfFamily",
    "HfReader",
    "InitSpec",
    "LatentAttention",
    "LatentAttentionConfig",
    "Linear",
    "LossConfig",
    "Moe",
    "MoeConfig",
    "NameRule",
    "Normal",
    "RMSNorm",
    "ResidualSpec",
    "Rope",
    "RopeConfig",
    "RouterConfig",
    "build_norm",
    "build_segments",
    "check_read",
    "expand",
    "read_head_dim",
    "read_kv_heads",
    "read_rope",
    "read_shared",
    "write_rope",
    "write_shared",
]
