"""Attention as ONE op: causal, within a window, full; of packed documents; with sinks; for grouped heads.

What a query sees beyond that is data: a table of segments (attention_segments.py), an input of the step. So the same
graph serves every packing of documents and, with context parallelism, every rank. The op saves its inputs, its output
and one number for each query and head, wherever it is captured and whichever kernel runs it.

A sink is a score that belongs to no key: it takes a share of the softmax and gives nothing to the output.
"""

from typing import Any, Literal

import torch
from torch import Tensor

from monograph.errors import ConfigError
from monograph.kernels import attention_on_gpu
from monograph.kernels.attention_reference import attend_backward_on_cpu, attend_on_cpu, lse_dtype
from monograph.kernels.attention_sinks import add_sinks, find_sink_gradient
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor

AttentionKernel = Literal["auto", "cudnn", "flash", "reference", "triton", "fastest"]
KERNELS: tuple[AttentionKernel, ...] = ("auto", "cudnn", "flash", "reference", "triton", "fastest")
"""By their number in graphs."""


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None = None,
    sinks: Tensor | None = None,
    *,
    scale: float,
    causal: bool = True,
    window: int = 0,
    kernel: AttentionKernel = "auto",
    cap: float = 0.0,
) -> Tensor:
    """The output [batch, queries, heads, value channels] of q over k and v, all [batch, sequence, heads, channels].

    Args:
        segments: which queries see which keys; without it every query of a sequence sees the keys of that sequence.
        sinks: one score for each query head.
        scale: what scores are multiplied by.
        causal: whether a query sees no keys after its own position; the last query stands at the last key.
        window: how many keys a query sees, its own included; 0 for all.
        kernel: which kernel computes it on a GPU; auto takes the fastest whose gradients do not vary from run to run.
        cap: scores become cap * tanh(scores / cap) before the softmax; 0 leaves them as they are.
    """
    out: Tensor = fused_attention(q, k, v, segments, sinks, scale, causal, window, KERNELS.index(kernel), cap)
    return out


def reference_attention(
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
    """On a CPU: segment by segment."""
    check_kernel(kernel)
    out, lse = attend_on_cpu(q, k, v, segments, scale=scale, causal=causal, window=window, cap=cap)
    return add_sinks(out, lse, sinks)


def reference_attention_backward(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients on a CPU; that of sinks is empty where there are none."""
    rule: dict[str, Any] = {"scale": scale, "causal": causal, "window": window, "cap": cap}
    found = attend_backward_on_cpu(grad, q, k, v, segments, out, lse, **rule)
    return *found, find_sink_gradient(grad, out, lse, sinks)


def check_kernel(kernel: int) -> None:
    """Refuse a GPU's kernel on a CPU."""
    if KERNELS[kernel] in ("cudnn", "flash", "triton"):
        raise ConfigError(
            f"the attention kernel is {KERNELS[kernel]}, on a CPU",
            why="it runs on GPUs only",
            do="--model.attention.kernel auto",
        )


def attention_backward(
    grad: Tensor,
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
    out: Tensor,
    lse: Tensor,
) -> tuple[Tensor | None, ...]:
    """The gradients of q, k, v and sinks, as one op."""
    *found, of_sinks = ATTENTION_BACKWARD(grad, q, k, v, segments, sinks, out, lse, scale, causal, window, kernel, cap)
    return *found, None if sinks is None else of_sinks


def fake_attention(q: Tensor, k: Tensor, v: Tensor, *_rest: object) -> tuple[Tensor, Tensor]:
    """The shapes of output and lse."""
    batch, queries, heads, _ = q.shape
    return q.new_empty((batch, queries, heads, v.shape[-1])), q.new_empty((batch, heads, queries), dtype=lse_dtype(q))


def fake_attention_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None, sinks: Tensor | None, *_rest: object
) -> tuple[Tensor, ...]:
    """The shapes of the gradients."""
    of_sinks = q.new_empty((0,)) if sinks is None else sinks.new_empty(sinks.shape)
    return *(each.new_empty(each.shape) for each in (q, k, v)), of_sinks


def _make_segments() -> Tensor:
    """Nine keys and five queries: the last queries of three documents; in a second sequence no query sees some keys."""
    first, second = ([0, 1, 4, 5, 5], [0, 4, 7, 9, 9]), ([0, 0, 2, 5, 5], [0, 3, 6, 9, 9])
    return torch.tensor([first, second], dtype=torch.int32)


def _make_examples() -> list[tuple[object, ...]]:
    q, k = example_tensor(2, 9, 4, 8), example_tensor(2, 9, 2, 8, seed=1)
    v, narrow, sinks = example_tensor(2, 9, 2, 8, seed=2), example_tensor(2, 9, 2, 4, seed=2), example_tensor(4, seed=3)
    return [
        (q, k, v, None, None, 0.3, True, 0, 0, 0.0),
        (q, k, narrow, None, sinks, 0.3, False, 0, 0, 0.0),
        (q[:, :5].contiguous(), k, v, _make_segments(), None, 0.3, True, 0, 0, 0.7),
        (q[:, :5].contiguous(), k, narrow, _make_segments(), sinks, 0.3, True, 3, 0, 0.0),
        (q, k[:, :5].contiguous(), v[:, :5].contiguous(), None, sinks, 0.3, True, 0, 0, 0.7),  # four queries see no key
    ]


def _make_backward_examples() -> list[tuple[object, ...]]:
    found = []
    for q, k, v, segments, sinks, *rest in _make_examples():
        out, lse = reference_attention(q, k, v, segments, sinks, *rest)  # type: ignore[arg-type]
        found.append((torch.ones_like(out), q, k, v, segments, sinks, out.contiguous(), lse.contiguous(), *rest))
    return found


_ARGUMENTS = "float scale, bool causal, int window, int kernel, float cap"
ATTENTION_BACKWARD = custom_op(
    "attention_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? segments, Tensor? sinks, Tensor out, "
    f"Tensor lse, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
    reference=reference_attention_backward,
    kernel=attention_on_gpu.attention_backward,
    fake=fake_attention_backward,
    examples=_make_backward_examples,
).op
fused_attention = custom_op(
    f"attention(Tensor q, Tensor k, Tensor v, Tensor? segments, Tensor? sinks, {_ARGUMENTS}) -> (Tensor, Tensor)",
    reference=reference_attention,
    kernel=attention_on_gpu.attention,
    fake=fake_attention,
    backward=attention_backward,
    save=("q", "k", "v", "segments", "sinks", "scale", "causal", "window", "kernel", "cap"),
    save_outputs=(0, 1),
    gradients=("q", "k", "v", "sinks"),
    internal=(1,),
    examples=_make_examples,
)
ATTENTION = fused_attention.op
