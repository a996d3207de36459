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

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("rope(Tensor x, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> Tensor")
_LIBRARY.define(
    "rope_packed(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> Tensor"
)

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, fp32 [batch or 1, sequence, 1, pairs], for RoPE."""


def apply_rope(x: Tensor, rotation: Rotation, *, interleaved: bool, kernels: str = "auto") -> Tensor:
    """Rotate the pairs of channels of x [batch, sequence, heads, dim]; computed in fp32, returned in x's dtype."""
    cos, sin = rotation
    return ApplyRope.apply(x, cos, sin, interleaved, is_fused(kernels, x))


class ApplyRope(Function):
    """A rotation, whose backward is the rotation the other way.

    A Function because autograd would go back op by op: over twice the memory, and remembering both halves in fp32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, fused: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved, ctx.fused = interleaved, fused
        return (ROPE if fused else reference_rope)(x, cos, sin, interleaved, False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return (ROPE if ctx.fused else reference_rope)(grad, cos, sin, ctx.interleaved, True), None, None, None, None


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


@torch.library.impl(_LIBRARY, "rope", "CPU")
def _rope_on_cpu(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    return reference_rope(x, cos, sin, interleaved, inverse).contiguous()


@torch.library.impl(_LIBRARY, "rope", "CUDA")
def _rope_on_cuda(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    return rope_on_gpu.rope(x, cos, sin, interleaved, inverse)


@torch.library.register_fake("monograph::rope", lib=_LIBRARY)
def _rope_shape(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.impl(_LIBRARY, "rope_packed", "CPU")
def _rope_packed_on_cpu(*args: Any) -> Tensor:
    return reference_rope_packed(*args).contiguous()


@torch.library.impl(_LIBRARY, "rope_packed", "CUDA")
def _rope_packed_on_cuda(*args: Any) -> Tensor:
    return rope_on_gpu.rope_packed(*args)


@torch.library.register_fake("monograph::rope_packed", lib=_LIBRARY)
def _rope_packed_shape(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> Tensor:
    return q.new_empty((*q.shape[:2], sum(x.shape[2] * x.shape[3] for x in (q, k, v))))


ROPE = torch.ops.monograph.rope.default
ROPE_PACKED = torch.ops.monograph.rope_packed.default
