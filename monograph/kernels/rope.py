"""RoPE: rotate pairs of channels by an angle, one pass over memory each way.

Op by op a rotation reads and writes fp32 halves five times over: a tenth of an eager step of a model of 1B parameters.
`rope_packed` applies RoPE to queries and keys and writes them side by side with the values, for the one matmul that
reads all gradients; the pass fuse_kernels puts it into graphs.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from monograph.compat.ops import cast
from monograph.kernels import rope_on_gpu
from monograph.kernels.choose import is_fused
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, fp32 [batch or 1, sequence, 1, pairs], for RoPE."""


def apply_rope(x: Tensor, rotation: Rotation, *, interleaved: bool, kernels: str = "auto") -> Tensor:
    """Rotate the pairs of channels of x [batch, sequence, heads, dim]; computed in fp32, returned in x's dtype."""
    cos, sin = rotation
    if is_fused(kernels, x):
        return fused_rope(x, cos, sin, interleaved, False)
    return ApplyRope.apply(x, cos, sin, interleaved)


class ApplyRope(Function):
    """A rotation in torch's ops, whose backward is the rotation the other way.

    A Function because autograd would go back op by op: over twice the memory, and remembering both halves in fp32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved = interleaved
        return reference_rope(x, cos, sin, interleaved, False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return reference_rope(grad, cos, sin, ctx.interleaved, True), None, None, None


def reference_rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """The rotation in torch's ops, with as few passes over memory as these allow."""
    if inverse:
        sin = -sin
    if interleaved:
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
    else:
        first, second = x.chunk(2, dim=-1)
    turned = torch.addcmul(first * cos, second, sin, value=-1), torch.addcmul(second * cos, first, sin)
    parts = [cast(part, x.dtype) for part in turned]
    return torch.stack(parts, dim=-1).flatten(-2) if interleaved else torch.cat(parts, dim=-1)


def reference_rope_packed(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> Tensor:
    """Two rotations and the values, [batch, sequence, all channels of all heads]."""
    turned = (reference_rope(x, cos, sin, interleaved, inverse) for x in (q, k))
    return torch.cat([x.flatten(2) for x in (*turned, v)], dim=-1)


def rope_backward(grad: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """The rotation the other way."""
    return fused_rope.op(grad, cos, sin, interleaved, not inverse)


def _make_examples() -> list[tuple[Any, ...]]:
    """Heads that are a part of wider ones, with pairs of channels side by side and half of the channels apart."""
    heads = example_tensor(2, 5, 3, 12)[..., 4:]
    cos, sin = example_tensor(2, 1, 5, 1, 4, seed=1).unbind()
    return [(heads, cos, sin, interleaved, inverse) for interleaved, inverse in ((True, False), (False, True))]


def _make_packed_examples() -> list[tuple[Any, ...]]:
    values = example_tensor(2, 5, 2, 6, seed=2)
    return [(q, q[:, :, 1:2], values, *others) for q, *others in _make_examples()]


fused_rope = custom_op(
    "rope(Tensor x, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> Tensor",
    reference=reference_rope,
    kernel=rope_on_gpu.rope,
    fake=lambda x, cos, sin, interleaved, inverse: x.new_empty(x.shape),
    backward=rope_backward,
    save=("cos", "sin", "interleaved", "inverse"),
    gradients=("x",),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
)
ROPE = fused_rope.op
ROPE_PACKED = custom_op(
    "rope_packed(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> Tensor",
    reference=reference_rope_packed,
    kernel=rope_on_gpu.rope_packed,
    fake=lambda q, k, v, *_: q.new_empty((*q.shape[:2], sum(x.shape[2] * x.shape[3] for x in (q, k, v)))),
    examples=_make_packed_examples,
    decompose=True,
    prebuild=True,
).op
