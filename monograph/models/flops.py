"""Useful floating-point operations per token, for MFU. Two conventions exist, so both are counted and named.

Matmuls: 6 operations per weight a token meets (2 forward, 4 backward; a frozen weight has no gradient and counts 4); a
routed expert's weights count for the share of tokens that visit it. An embedding is a lookup and counts nothing.
Attention scores: every layer multiplies each query with every key and value of its sequence (full), or with half of
them (causal); in a layer with a window or with chunks, with as many as these hold (full), or as a query sees of them on
average (causal).

Modules say what is not plain: `used_share` is the share of tokens that use a module's weights, `score_width` the
channels that one query meets at one position, keys and values together, and `count_score_keys(seq_len)` at how many
positions, in either convention.
"""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class FlopsPerToken:
    """Operations one token costs in forward and backward together."""

    matmul: float
    attention: float
    """Of every query with all keys that any query may see."""
    seen: float | None = None
    """Of every query with the keys that it sees; half of the former where nothing is said."""

    @property
    def full_attention(self) -> float:
        """The convention most published MFU figures use: attention counted as if it were not causal."""
        return self.matmul + self.attention

    @property
    def causal_attention(self) -> float:
        """Counts only the attention scores that a causal model needs."""
        return self.matmul + (self.attention / 2 if self.seen is None else self.seen)

    FORMULA = "6 x active matmul weights + attention scores (mfu: of all keys in reach, mfu_causal: of those seen)"


def count_model_flops(model: nn.Module, seq_len: int) -> FlopsPerToken:
    """Count from a model's own modules; it may be on the meta device."""
    shares: dict[int, float] = {}
    lookups: set[str] = set()
    attention = seen = 0.0
    for path, module in model.named_modules():
        share = getattr(module, "used_share", None)
        if share is not None:
            shares |= {id(weight): share for weight in module.parameters()}
        if isinstance(module, nn.Embedding):
            lookups.add(f"{path}.weight".lstrip("."))
        count_keys = getattr(module, "count_score_keys", count_causal_keys)
        most, mean = count_keys(seq_len)
        width = getattr(module, "score_width", 0)
        attention, seen = attention + width * most, seen + width * mean
    matmul = sum(
        (6.0 if weight.requires_grad else 4.0) * weight.numel() * shares.get(id(weight), 1.0)
        for name, weight in model.named_parameters(remove_duplicate=False)
        if weight.ndim >= 2 and name not in lookups
    )
    return FlopsPerToken(matmul=matmul, attention=6.0 * attention, seen=6.0 * seen)


def count_causal_keys(seq_len: int) -> tuple[float, float]:
    """Keys that a query of a plain causal layer meets."""
    return float(seq_len), seq_len / 2
