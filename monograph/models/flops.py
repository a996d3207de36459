"""Useful floating-point operations per token, for MFU. Two conventions exist, so both are counted and named.

Matmuls: 6 operations per weight a token meets (2 forward, 4 backward; a frozen weight has no gradient and counts 4); a
routed expert's weights count for the share of tokens that visit it. An embedding is a lookup and counts nothing.
Attention scores: every layer multiplies each query with every key and value of its sequence (full), or with half of
them (causal).

Modules say what is not plain: `used_share` is the share of tokens that use a module's weights, `score_width` the
channels that one query meets at one position, keys and values together.
"""

from dataclasses import dataclass

from torch import nn


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


def count_model_flops(model: nn.Module, seq_len: int) -> FlopsPerToken:
    """Count from a model's own modules; it may be on the meta device."""
    shares: dict[int, float] = {}
    lookups: set[str] = set()
    widths = 0
    for path, module in model.named_modules():
        share = getattr(module, "used_share", None)
        if share is not None:
            shares |= {id(weight): share for weight in module.parameters()}
        if isinstance(module, nn.Embedding):
            lookups.add(f"{path}.weight".lstrip("."))
        widths += getattr(module, "score_width", 0)
    matmul = sum(
        (6.0 if weight.requires_grad else 4.0) * weight.numel() * shares.get(id(weight), 1.0)
        for name, weight in model.named_parameters(remove_duplicate=False)
        if weight.ndim >= 2 and name not in lookups
    )
    return FlopsPerToken(matmul=matmul, attention=6.0 * seq_len * widths)
