"""Attention of a few new tokens over all tokens so far, in torch's own ops: there is next to nothing to fuse.

Query heads that share a key head are further queries of it, so that keys are never repeated in memory.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def cached_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor | None = None, *, scale: float
) -> Tensor:
    """The output [batch, queries, heads, value channels] of q [batch, queries, heads, channels] over k and v.

    Args:
        k, v: all tokens so far, [batch, key heads, tokens, channels].
        mask: which query sees which token, bool [batch, 1, queries, tokens]; all see all without it.
        sinks: one score for each query head.
    """
    queries, heads, shared = q.shape[1], q.shape[2], k.shape[1]
    groups = heads // shared
    by_head = q.unflatten(2, (shared, groups)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    seen = None if mask is None else mask.repeat(1, 1, groups, 1)
    if sinks is None:
        out = F.scaled_dot_product_attention(by_head, k, v, attn_mask=seen, scale=scale)
    else:
        out = attend_with_sinks(by_head, k, v, seen, sinks.view(shared, groups).repeat_interleave(queries, 1), scale)
    return out.unflatten(2, (groups, queries)).permute(0, 3, 1, 2, 4).flatten(2, 3)


def attend_with_sinks(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, sinks: Tensor, scale: float) -> Tensor:
    """The same with a further score in every softmax, sinks [heads, queries], that has no value."""
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = (q.to(wide) * scale) @ k.to(wide).mT
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    column = sinks.to(wide)[None, :, :, None].expand(q.shape[0], -1, -1, 1)
    weights = torch.cat((scores, column), dim=-1).softmax(-1)[..., :-1]
    return weights.to(v.dtype) @ v
