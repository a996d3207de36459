"""Score functions of FlexAttention: examples that recipes use. Loads without torch, which they are called with."""

from typing import Any

SOFT_CAP = 30.0
"""Scores stay below it."""


def add_alibi(score: Any, _batch: Any, head: Any, query: Any, key: Any, *, n_heads: int) -> Any:
    """Scores fall with the distance of a key, in every head at another rate (ALiBi)."""
    return score - (query - key) * (2.0 ** (-8.0 * (head + 1) / n_heads))


def cap_softly(score: Any, _batch: Any, _head: Any, _query: Any, _key: Any) -> Any:
    """Scores between -30 and 30, however large they were."""
    return SOFT_CAP * (score / SOFT_CAP).tanh()
