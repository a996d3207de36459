"""torch's attention kernels, called directly: their names are private. Checked on 2.11 (schemas), 2.13 and 2.15 (CPU).

All take and return [batch, sequence, heads, channels]; `flash` also takes tokens of all sequences one after the other,
[tokens, heads, channels], with `ends`: where each segment's queries and keys begin and end. The logarithms of the
softmax's denominators (lse) are [batch, heads, sequence], or [heads, tokens].
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention

_ATEN = torch.ops.aten


class Ends(NamedTuple):
    """Where segments end, int32 on the device, and the longest there may be."""

    queries: Tensor | None
    keys: Tensor | None
    max_queries: int
    max_keys: int


def can_use_cudnn(q: Tensor, k: Tensor, v: Tensor, *, causal: bool) -> bool:
    """Whether cuDNN's kernel serves these tensors; not while torch wants deterministic algorithms only."""
    is_grouped = q.shape[2] != k.shape[2]
    params = SDPAParams(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, 0.0, causal, is_grouped)
    return can_use_cudnn_attention(params, False)


def cudnn_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """The output and the lse, by cuDNN."""
    by_head = (x.transpose(1, 2) for x in (q, k, v))
    found = _ATEN._scaled_dot_product_cudnn_attention(*by_head, None, True, 0.0, causal, False, scale=scale)
    return found[0].transpose(1, 2), found[1].squeeze(-1)


def cudnn_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, *, scale: float, causal: bool
) -> tuple[Tensor, ...]:
    """The gradients of q, k and v, by cuDNN."""
    by_head = [x.transpose(1, 2) for x in (grad, q, k, v, out)]
    unused = torch.zeros((), dtype=torch.int64, device=q.device)  # of dropout
    lengths = (q.shape[1], k.shape[1])
    found = _ATEN._scaled_dot_product_cudnn_attention_backward(
        *by_head, lse.unsqueeze(-1), unused, unused, None, None, None, *lengths, 0.0, causal, scale=scale
    )
    return tuple(each.transpose(1, 2) for each in found)


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, ends: Ends, *, scale: float, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """The output and the lse, by FlashAttention 2; `window` counts keys to the left and right, -1 for all."""
    found = _ATEN._flash_attention_forward(
        *(q, k, v, *ends, 0.0, False, False), scale=scale, window_size_left=window[0], window_size_right=window[1]
    )
    return found[0], found[1]


def flash_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    ends: Ends,
    *,
    scale: float,
    window: tuple[int, int],
) -> tuple[Tensor, ...]:
    """The gradients of q, k and v, by FlashAttention 2; deterministic where torch wants deterministic algorithms."""
    unused = torch.zeros(2, dtype=torch.uint64, device=q.device), torch.zeros((), dtype=torch.uint64, device=q.device)
    found = _ATEN._flash_attention_backward(
        *(grad, q, k, v, out, lse, *ends, 0.0, False, *unused),
        scale=scale,
        window_size_left=window[0],
        window_size_right=window[1],
    )
    return tuple(found)


def cpu_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The output and the lse on a CPU; `bias` is added to the scores, and causal needs as many keys as queries."""
    by_head = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = _ATEN._scaled_dot_product_flash_attention_for_cpu(*by_head, 0.0, causal, attn_mask=bias, scale=scale)
    return out.transpose(1, 2), lse


def cpu_attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool,
    bias: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """The gradients of q, k and v on a CPU."""
    by_head = (x.transpose(1, 2) for x in (grad, q, k, v, out))
    found = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
        *by_head, lse, 0.0, causal, attn_mask=bias, scale=scale
    )
    return tuple(each.transpose(1, 2) for each in found)
