"""Useful floating-point operations per token, for MFU. Two conventions exist, so both are counted and named.

Matmuls: 6 operations per weight a token meets: 2 forward, 2 for its gradient (a frozen weight has none), 2 for that of
what it meets (needed where something before it is trained); a routed expert's weights count for the share of tokens
that visit it. An embedding is a lookup and counts nothing.
Attention scores: every layer multiplies each query with every key and value of its sequence (full), or with half of
them (causal); in a layer with a window or with chunks, with as many as these hold (full), or as a query sees of them on
average (causal). Where nothing before is trained, only the third of it that is forward.

Modules say what is not plain: `used_share` is the share of tokens that use a module's weights, `score_width` the
channels that one query meets at one position, keys and values together, and `count_score_keys(seq_len)` at how many
positions, in either convention.
"""

from collections.abc import Mapping
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


def count_model_flops(model: nn.Module, seq_len: int, *, is_reached: bool = False) -> FlopsPerToken:
    """Count from a model's own modules, which it has in the order they run; it may be on the meta device. `is_reached`:
    something before it is trained."""
    reached = find_reached(model, is_reached=is_reached)
    shares: dict[int, float] = {}
    lookups: set[str] = set()
    attention = seen = 0.0
    for path, module in model.named_modules():
        share = getattr(module, "used_share", None)
        if share is not None:
            shares |= {id(weight): share for weight in module.parameters()}
        if isinstance(module, nn.Embedding):
            lookups.add(f"{path}.weight".lstrip("."))
        width = getattr(module, "score_width", 0)
        if width:
            most, mean = getattr(module, "count_score_keys", count_causal_keys)(seq_len)
            own = [is_needed for name, is_needed in reached.items() if name.startswith(f"{path}." if path else "")]
            width *= 6.0 if (own[-1] if own else True) else 2.0
            attention, seen = attention + width * most, seen + width * mean
    matmul = sum(
        2.0 * (1 + weight.requires_grad + reached[name]) * weight.numel() * shares.get(id(weight), 1.0)
        for name, weight in model.named_parameters(remove_duplicate=False)
        if weight.ndim >= 2 and name not in lookups
    )
    return FlopsPerToken(matmul=matmul, attention=attention, seen=seen)


def count_unit_flops(units: Mapping[str, nn.Module], seq_len: int) -> dict[str, FlopsPerToken]:
    """The same for every unit of a model, in their order."""
    found, is_reached = {}, False
    for path, unit in units.items():
        found[path] = count_model_flops(unit, seq_len, is_reached=is_reached)
        is_reached = is_reached or any(weight.requires_grad for weight in unit.parameters())
    return found


def find_reached(model: nn.Module, *, is_reached: bool) -> dict[str, bool]:
    """For every parameter, whether what it meets has a gradient: whether one before it is trained."""
    reached = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        reached[name] = is_reached
        is_reached = is_reached or weight.requires_grad
    return reached


def count_causal_keys(seq_len: int) -> tuple[float, float]:
    """Keys that a query of a plain causal layer meets."""
    return float(seq_len), seq_len / 2
