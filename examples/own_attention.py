"""Functions of your own for FlexAttention: which keys a query sees, and what its scores become.

    monograph train llama3_debugmodel --model.attention.kernel flex \\
        --model.attention.mask_mod examples.own_attention:see_prefix_and_past \\
        --model.attention.score_mod examples.own_attention:prefer_near
"""

from torch import Tensor

PREFIX = 16


def see_prefix_and_past(batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *, positions: Tensor) -> Tensor:
    """A query sees the keys before it, and the first 16 of its document."""
    return (query >= key) | (positions[batch, key] < PREFIX)


def prefer_near(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor, *, n_heads: int) -> Tensor:
    """Scores fall with distance, in the last heads the least."""
    return score - (query - key).abs() * 0.1 * (n_heads - head) / n_heads
