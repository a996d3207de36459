"""Attention of a few new tokens over all tokens so far, in torch's own ops: there is next to nothing to fuse.

Query heads that share a key head are further queries of it, so that keys are never repeated in memory.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None = None,
    *,
    scale: float,
    cap: float = 0.0,
) -> Tensor:
    """The output [batch, queries, heads, value channels] of q [batch, queries, heads, channels] over k and v.

    Args:
        k, v: all tokens so far, [batch, key heads, tokens, channels].
        mask: which query sees which token, bool [batch, 1, queries, tokens]; all see all without it.
        sinks: one score for each query head.
        cap: scores become cap * tanh(scores / cap); 0 leaves them as they are.
    """
    queries, heads, shared = q.shape[1], q.shape[2], k.shape[1]
    groups = heads // shared
    by_head = q.unflatten(2, (shared, groups)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    seen = None if mask is None else mask.repeat(1, 1, groups, 1)
    if sinks is None and not cap:
        out = F.scaled_dot_product_attention(by_head, k, v, attn_mask=seen, scale=scale)
    else:
        by_query = None if sinks is None else sinks.view(shared, groups).repeat_interleave(queries, 1)
        out = attend_by_scores(by_head, k, v, seen, by_query, scale, cap)
    return out.unflatten(2, (groups, queries)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def attend_by_scores(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None, scale: float, cap: float
) -> Tensor:
    """The same with capped scores, and a further score without a value in every softmax, sinks [heads, queries]."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = (q.to(wide) * scale) @ k.to(wide).mT
    if cap:
        scores = cap * (scores / cap).tanh()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if sinks is None:
        return scores.softmax(-1).to(v.dtype) @ v
    column = sinks.to(wide)[None, :, :, None].expand(q.shape[0], -1, -1, 1)
    weights = torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
    return weights.to(v.dtype) @ v
