"""Heads of latent attention, [channels without position | channels with RoPE], put together in one pass over memory.

Op by op, the last channels are turned into a tensor of their own and then everything is copied; backward cuts, turns
and copies it all once more, for the queries and for the keys, and sums the shared key's gradient over strided heads.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from monograph.kernels import heads_on_gpu
from monograph.kernels.choose import is_fused
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor
from monograph.kernels.rope import Rotation, apply_rope, reference_rope


def rope_tail(x: Tensor, rotation: Rotation, *, interleaved: bool, kernels: str = "auto") -> Tensor:
    """Turn the last channels of x [batch, sequence, heads, dim], as many as the rotation has; the others stay."""
    cos, sin = rotation
    if is_fused(kernels, x):
        return RopeTail.apply(x, cos, sin, interleaved)
    own, tail = cut_tail(x, cos)
    return torch.cat((own, apply_rope(tail, rotation, interleaved=interleaved, kernels=kernels)), dim=-1)


def join_keys(
    kv: Tensor, shared: Tensor, rotation: Rotation, *, values: int, interleaved: bool, kernels: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Keys and values: kv [batch, sequence, heads, own channels + values] cut in two, the keys with RoPE on their tail.

    The tail [batch, sequence, 1, channels] is the same for all heads.
    """
    if is_fused(kernels, kv):
        return JoinKeys.apply(kv, shared, *rotation, values, interleaved)
    own, v = kv.split((kv.shape[-1] - values, values), dim=-1)
    tail = apply_rope(shared, rotation, interleaved=interleaved, kernels=kernels)
    return torch.cat((own, tail.expand(-1, -1, own.shape[2], -1)), dim=-1), v


def cut_tail(x: Tensor, cos: Tensor) -> tuple[Tensor, ...]:
    """What stays as it is, and the channels that get RoPE."""
    rope = 2 * cos.shape[-1]
    return x.split((x.shape[-1] - rope, rope), dim=-1)


class RopeTail(Function):
    """RoPE on the last channels; backward rotates the other way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return JOIN_HEADS(*cut_tail(x, cos), cos, sin, interleaved, False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return JOIN_HEADS(*cut_tail(grad, cos), cos, sin, ctx.interleaved, True), None, None, None


class JoinKeys(Function):
    """Keys and values of one matmul; backward writes that matmul's gradient whole, instead of joining two halves."""

    @staticmethod
    def forward(
        ctx: Any, kv: Tensor, shared: Tensor, cos: Tensor, sin: Tensor, values: int, interleaved: bool
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        own, v = kv.split((kv.shape[-1] - values, values), dim=-1)
        return JOIN_HEADS(own, shared, cos, sin, interleaved, False), v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        return *SPLIT_HEADS(*grads, *ctx.saved_tensors, ctx.interleaved), None, None, None, None


def reference_join_heads(
    own: Tensor, tail: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> Tensor:
    """Channels without position and a tail with RoPE, which may be one for all heads."""
    turned = reference_rope(tail, cos, sin, interleaved, inverse)
    return torch.cat((own, turned.expand(-1, -1, own.shape[2], -1)), dim=-1)


def reference_split_heads(
    grad_keys: Tensor, grad_values: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of `join_keys`: of the matmul, and of the tail that all heads share."""
    own, tail = cut_tail(grad_keys, cos)
    shared = reference_rope(tail.sum(dim=2, keepdim=True), cos, sin, interleaved, True)
    return torch.cat((own, grad_values), dim=-1), shared


def _fake_split_heads(
    grad_keys: Tensor, grad_values: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    batch, seq_len, heads, dim = grad_keys.shape
    rope = 2 * cos.shape[-1]
    of_kv = grad_keys.new_empty(batch, seq_len, heads, dim - rope + grad_values.shape[-1])
    return of_kv, grad_keys.new_empty(batch, seq_len, 1, rope)


def _make_examples() -> list[tuple[Any, ...]]:
    """Heads with a tail that all of them share, then with one each."""
    cos, sin = example_tensor(2, 1, 5, 1, 4, seed=1).unbind()
    own = example_tensor(2, 5, 3, 10)[..., :6]
    return [(own, example_tensor(2, 5, heads, 8, seed=2), cos, sin, heads == 1, heads > 1) for heads in (1, 3)]


def _make_split_examples() -> list[tuple[Any, ...]]:
    keys, values = example_tensor(2, 5, 3, 14, seed=3), example_tensor(2, 5, 3, 4, seed=4)
    return [(keys, values, cos, sin, interleaved) for _, _, cos, sin, interleaved, _ in _make_examples()]


JOIN_HEADS = custom_op(
    "join_heads(Tensor own, Tensor tail, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> Tensor",
    reference=reference_join_heads,
    kernel=heads_on_gpu.join_heads,
    fake=lambda own, tail, *_: own.new_empty((*own.shape[:-1], own.shape[-1] + tail.shape[-1])),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
SPLIT_HEADS = custom_op(
    "split_heads(Tensor grad_keys, Tensor grad_values, Tensor cos, Tensor sin, bool interleaved) -> (Tensor, Tensor)",
    reference=reference_split_heads,
    kernel=heads_on_gpu.split_heads,
    fake=_fake_split_heads,
    examples=_make_split_examples,
    decompose=True,
    prebuild=True,
).op
