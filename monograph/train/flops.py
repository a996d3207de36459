"""Useful floating-point operations per token, for MFU. Two conventions exist, so both are counted and named.

Matmuls: 6 operations per weight a token meets (2 forward, 4 backward); a routed expert's weights count for
the share of tokens that visit it. The embedding is a lookup and counts nothing. Attention scores: every layer
multiplies each query with every key and value of its sequence (full), or with half of them (causal).
"""

from dataclasses import dataclass

from torch import nn

from monograph.models.attention import Attention
from monograph.models.decoder import Decoder
from monograph.models.latent_attention import LatentAttention
from monograph.models.moe import Moe


@dataclass(frozen=True)
class FlopsPerToken:
    """Operations one token costs in forward and backward together."""

    matmul: float
    attention: float

    @property
    def full_attention(self) -> float:
        """The convention most published MFU figures use: attention counted as if it were not causal."""
        return self.matmul + self.attention

    @property
    def causal_attention(self) -> float:
        """Counts only the half of the attention scores that a causal model needs."""
        return self.matmul + self.attention / 2

    FORMULA = "6 x active matmul weights + attention scores (mfu: full, mfu_causal: half)"


def count_flops(model: Decoder, seq_len: int) -> FlopsPerToken:
    """Count from the model's own layers; `model` may be on the meta device."""
    visited = {
        id(w): m.router.config.top_k / m.n_experts
        for m in model.modules()
        if isinstance(m, Moe)
        for w in m.experts.parameters()
    }
    matmul = sum(
        6.0 * weight.numel() * visited.get(id(weight), 1.0)
        for name, weight in model.named_parameters(remove_duplicate=False)
        if weight.ndim >= 2 and name != "embedding.weight"
    )
    widths = sum(score_width(module) for module in model.modules())
    return FlopsPerToken(matmul=matmul, attention=6.0 * seq_len * widths)


def score_width(module: nn.Module) -> int:
    """Channels that one query meets at one position, keys and values together; 0 for what is not attention."""
    if isinstance(module, LatentAttention):
        return module.config.n_heads * (module.qk_head_dim + module.config.v_head_dim)
    if isinstance(module, Attention):
        return module.config.n_heads * 2 * module.head_dim
    return 0
