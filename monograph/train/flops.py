"""Useful floating-point operations per token, for MFU. Two conventions exist, so both are counted and named.

Matrix products: 6 operations per weight a token meets (2 forward, 4 backward); a routed expert's weights count for
the share of tokens that visit it. The embedding is a lookup and counts nothing. Attention scores: every layer
multiplies each query with every key and value of its sequence (full), or with half of them (causal).
"""

from dataclasses import dataclass

from torch import nn

from monograph.models.config import DecoderConfig


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


def count_flops(model: nn.Module, config: DecoderConfig, seq_len: int) -> FlopsPerToken:
    """Count from the model's own weights; `model` may be on the meta device."""
    matmul = 0.0
    for name, weight in model.named_parameters(remove_duplicate=False):
        if name == "embedding.weight" or weight.ndim < 2:
            continue
        is_routed = ".moe.experts." in name
        visited = config.moe.router.top_k / weight.shape[0] if is_routed and config.moe else 1.0
        matmul += 6 * weight.numel() * visited
    attention = config.n_layers * 6 * seq_len * config.attention.score_width
    return FlopsPerToken(matmul=matmul, attention=attention)
