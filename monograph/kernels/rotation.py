"""Turning pairs of channels by an angle, one pass over memory each way.

Op by op a rotation reads and writes fp32 halves five times over: a tenth of an eager step of a model of 1B parameters.
`rotate_joined` turns queries and keys and writes them side by side with the values, for the one product that reads all
gradients; the pass fuse_kernels puts it into graphs.
"""

import importlib
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from monograph.compat.ops import cast
from monograph.kernels.choose import is_fused

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("rotate(Tensor x, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> Tensor")
_LIBRARY.define(
    "rotate_joined(Tensor q, Tensor k, Tensor v, Tensor cos, Tensor sin, bool interleaved, bool inverse) -> Tensor"
)

Rotation = tuple[Tensor, Tensor]
"""Cosines and sines, fp32 [batch or 1, sequence, 1, pairs], to turn heads with."""


def rotate(x: Tensor, rotation: Rotation, *, interleaved: bool, kernels: str = "auto") -> Tensor:
    """Turn the pairs of channels of x [batch, sequence, heads, dim]; computed in fp32, returned in x's dtype."""
    cos, sin = rotation
    return Rotate.apply(x, cos, sin, interleaved, is_fused(kernels, x))


class Rotate(Function):
    """A rotation, whose backward is the rotation the other way.

    A Function because autograd would go back op by op: over twice the memory, and remembering both halves in fp32.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, fused: bool) -> Tensor:
        ctx.save_for_backward(cos, sin)
        ctx.interleaved, ctx.fused = interleaved, fused
        return (ROTATE if fused else turn)(x, cos, sin, interleaved, False)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin = ctx.saved_tensors
        return (ROTATE if ctx.fused else turn)(grad, cos, sin, ctx.interleaved, True), None, None, None, None


def turn(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
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


def turn_joined(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """Two rotations and the values, [batch, sequence, all channels of all heads]."""
    turned = (turn(x, cos, sin, interleaved, inverse) for x in (q, k))
    return torch.cat([x.flatten(2) for x in (*turned, v)], dim=-1)


@torch.library.impl(_LIBRARY, "rotate", "CPU")
def _rotate_on_cpu(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    return turn(x, cos, sin, interleaved, inverse).contiguous()


@torch.library.impl(_LIBRARY, "rotate", "CUDA")
def _rotate_on_cuda(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    return importlib.import_module("monograph.kernels.rotation_on_gpu").rotate(x, cos, sin, interleaved, inverse)


@torch.library.register_fake("monograph::rotate", lib=_LIBRARY)
def _rotate_shape(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.impl(_LIBRARY, "rotate_joined", "CPU")
def _rotate_joined_on_cpu(*args: Any) -> Tensor:
    return turn_joined(*args).contiguous()


@torch.library.impl(_LIBRARY, "rotate_joined", "CUDA")
def _rotate_joined_on_cuda(*args: Any) -> Tensor:
    return importlib.import_module("monograph.kernels.rotation_on_gpu").rotate_joined(*args)


@torch.library.register_fake("monograph::rotate_joined", lib=_LIBRARY)
def _rotate_joined_shape(
    q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool
) -> Tensor:
    return q.new_empty((*q.shape[:2], sum(x.shape[2] * x.shape[3] for x in (q, k, v))))


ROTATE = torch.ops.monograph.rotate.default
ROTATE_JOINED = torch.ops.monograph.rotate_joined.default
