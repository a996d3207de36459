"""Which kernel computes attention on a GPU.

cuDNN's is the fastest where a sequence is one text (docs/decisions/0028), but its backward adds in any order. Unless
`fastest` asks for it, the backward is then our Triton kernel, which adds in one order. Tables of segments, windows and
caps of scores are for our Triton kernels as a whole (segment_attention_on_gpu.py): FlashAttention 2 takes tables and
windows too, but starts a program for every block of every segment that there is room for. None takes fp32: there, and
for heads of more than 256 channels, scores are computed as a whole.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from monograph.compat.attention import (
    Ends,
    can_use_cudnn,
    cudnn_attention,
    cudnn_attention_backward,
    flash_attention,
    flash_attention_backward,
)
from monograph.errors import ConfigError
from monograph.kernels.attention_reference import attend_backward_densely, attend_densely, pad_channels
from monograph.kernels.attention_segments import flatten_segments
from monograph.kernels.attention_sinks import add_sinks, find_sink_gradient
from monograph.kernels.segment_attention_backward_on_gpu import run_segments_backward
from monograph.kernels.segment_attention_on_gpu import run_segments

MAX_CHANNELS = 256
AUTO, CUDNN, FLASH, DENSE, TRITON, FASTEST = range(6)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    sinks: Tensor | None,
    scale: float,
    causal: bool,
    window: int,
    kernel: int,
    cap: float,
) -> tuple[Tensor, Tensor]:
    """Output and lse."""
    chosen = choose_kernel(q, k, v, segments, causal=causal, window=window, kernel=kernel, cap=cap)
    if chosen == CUDNN:
        out, lse = cudnn_attention(q, k, v, scale=scale, causal=causal)
    elif chosen == FLASH:
        out, lse = run_flash(q, k, v, segments, scale=scale, window=find_window(causal, window))
    elif chosen == TRITON:
        out, lse = run_segments(q, k, v, segments, scale=scale, causal=causal, window=window, cap=cap)
    else:
        out, lse = attend_densely(q, k, v, segments, scale=scale, causal=causal, window=window, cap=cap)
    out, lse = add_sinks(out, lse, sinks)
    return out.contiguous(), lse.contiguous()


def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    window: int,
    kernel: int,
    cap: float,
) -> tuple[Tensor, ...]:
    """The gradients of q, k, v and sinks, by the kernel of the forward; for `auto` by one that adds in one order."""
    chosen = choose_kernel(q, k, v, segments, causal=causal, window=window, kernel=kernel, cap=cap)
    chosen = choose_for_backward(chosen, kernel)
    found: tuple[Tensor, ...]
    rule: dict[str, Any] = {"scale": scale, "causal": causal, "window": window, "cap": cap}
    if chosen == CUDNN:
        found = cudnn_attention_backward(grad, q, k, v, out, lse, scale=scale, causal=causal)
    elif chosen == FLASH:
        found = run_flash_backward(grad, q, k, v, segments, out, lse, scale=scale, window=find_window(causal, window))
    elif chosen == TRITON:
        found = run_segments_backward(grad, q, k, v, segments, out, lse, **rule)
    else:
        found = attend_backward_densely(grad, q, k, v, segments, out, lse, **rule)
    return *(each.contiguous() for each in found), find_sink_gradient(grad, out, lse, sinks)


def choose_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    *,
    causal: bool,
    window: int,
    kernel: int,
    cap: float = 0.0,
    can_use: Callable[..., bool] = can_use_cudnn,
) -> int:
    """The kernel for these tensors: the one that was asked for, or the fastest that serves them."""
    is_narrow = q.dtype in (torch.bfloat16, torch.float16)
    serves = {
        CUDNN: is_narrow
        and segments is None
        and not window
        and not cap
        and q.shape[1] == k.shape[1]
        and can_use(q, k, v, causal=causal),
        TRITON: is_narrow and max(q.shape[-1], v.shape[-1]) <= MAX_CHANNELS,
        FLASH: is_narrow and max(q.shape[-1], v.shape[-1]) <= MAX_CHANNELS and not cap,
        DENSE: True,
    }
    if kernel in (AUTO, FASTEST):
        return next(each for each, is_served in serves.items() if is_served)
    if not serves[kernel]:
        name = {CUDNN: "cudnn", FLASH: "flash", TRITON: "triton"}[kernel]
        raise ConfigError(
            f"the attention kernel is {name}, which does not serve {q.dtype} heads of {q.shape[-1]} channels"
            + (" with packed documents" if segments is not None else "")
            + (f" with scores capped at {cap}" if cap else ""),
            why="flash and triton take bf16, up to 256 channels; cudnn also wants one text a sequence no window, "
            "flash and cudnn no cap of scores",
            do="--model.attention.kernel auto",
        )
    return kernel


def choose_for_backward(of_forward: int, kernel: int) -> int:
    """The kernel of the backward: that of the forward, but for `auto` one that adds in one order."""
    return TRITON if of_forward == CUDNN and kernel == AUTO else of_forward


def find_window(causal: bool, window: int) -> tuple[int, int]:
    """Keys to the left and to the right of a query that it sees; -1 for all."""
    return window - 1 if window else -1, 0 if causal else -1


def run_flash(
    q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None, *, scale: float, window: tuple[int, int]
) -> tuple[Tensor, Tensor]:
    """Output and lse by FlashAttention, which wants as many value channels as query channels."""
    width, (q, k, v) = v.shape[-1], pad_channels(q, k, v)
    if segments is None:
        ends = Ends(None, None, q.shape[1], k.shape[1])
        out, lse = flash_attention(q, k, v, ends, scale=scale, window=window)
        return out[..., :width], lse
    tokens = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    out, lse = flash_attention(*tokens, find_ends(q, k, segments), scale=scale, window=window)
    by_sequence = lse.unflatten(1, (q.shape[0], q.shape[1])).transpose(0, 1)
    return out.unflatten(0, q.shape[:2])[..., :width], by_sequence


def run_flash_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    window: tuple[int, int],
) -> tuple[Tensor, ...]:
    """The gradients by FlashAttention."""
    widths = q.shape[-1], k.shape[-1], v.shape[-1]
    q, k, v, grad, out = pad_channels(q, k, v, grad, out)
    if segments is None:
        ends = Ends(None, None, q.shape[1], k.shape[1])
        found = flash_attention_backward(grad, q, k, v, out, lse, ends, scale=scale, window=window)
    else:
        by_token = lse.transpose(0, 1).flatten(1).contiguous()
        tokens = grad.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), out.flatten(0, 1), by_token
        flat = flash_attention_backward(*tokens, find_ends(q, k, segments), scale=scale, window=window)
        found = tuple(each.unflatten(0, x.shape[:2]) for each, x in zip(flat, (q, k, v), strict=True))
    return tuple(each[..., :width] for each, width in zip(found, widths, strict=True))


def find_ends(q: Tensor, k: Tensor, segments: Tensor) -> Ends:
    """The bounds of all segments; the longest may be as long as a sequence, which costs nothing."""
    return Ends(*flatten_segments(segments, q.shape[1], k.shape[1]), q.shape[1], k.shape[1])
