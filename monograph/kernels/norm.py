"""RMS norm, forward and backward in one pass over memory each, also together with the addition beside it.

Op by op a norm's backward reads its inputs twice (torch has one kernel for the input's gradient and another for the
weight's), and the residual additions around it read and write the stream again. The ops for a norm with its addition
are put into graphs by the pass fuse_kernels; they round where the two ops would, so they give the same bits.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from monograph.compat.ops import cast
from monograph.kernels import norm_on_gpu
from monograph.kernels.choose import is_fused

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)")
_LIBRARY.define("add_norm(Tensor x, Tensor other, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define("norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd, Tensor? other) -> (Tensor, Tensor)")
_LIBRARY.define(
    "norm_backward_recompute(Tensor grad, Tensor x, Tensor weight, Tensor rstd, Tensor? other) "
    "-> (Tensor, Tensor, Tensor)"
)


def norm(x: Tensor, weight: Tensor, eps: float, *, kernels: str = "auto") -> Tensor:
    """x divided by the root mean square of its last dim, times weight."""
    return Norm.apply(x, weight, eps) if is_fused(kernels, x) else F.rms_norm(x, (x.shape[-1],), weight, eps)


class Norm(Function):
    """The norm by our own ops."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        out, rstd = NORM(x, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *NORM_BACKWARD(grad, *ctx.saved_tensors, None), None


def reference_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm in torch's ops, and one over the root mean square of every row, in fp32."""
    wide = x.float()
    rstd = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return cast(wide * rstd * weight.float(), x.dtype), rstd


def reference_add_norm(x: Tensor, other: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """A sum, and what `reference_norm` makes of it."""
    total = x + other
    return total, *reference_norm(total, weight, eps)


def reference_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of x (plus `other`) and of the weight."""
    scaled, wide = x.float() * rstd, grad.float()
    inner = wide * weight.float()
    of_x = cast((inner - scaled * (inner * scaled).mean(-1, keepdim=True)) * rstd, x.dtype)
    of_weight = cast((wide * scaled).flatten(0, -2).sum(0), weight.dtype)
    return (of_x if other is None else of_x + other), of_weight


def reference_norm_backward_recompute(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and the norm once more."""
    again = cast(x.float() * rstd * weight.float(), x.dtype)
    return *reference_norm_backward(grad, x, weight, rstd, other), again


@torch.library.impl(_LIBRARY, "norm", "CPU")
def _norm_on_cpu(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _contiguous(reference_norm(x, weight, eps))


@torch.library.impl(_LIBRARY, "add_norm", "CPU")
def _add_norm_on_cpu(x: Tensor, other: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return _contiguous(reference_add_norm(x, other, weight, eps))


@torch.library.impl(_LIBRARY, "norm_backward", "CPU")
def _norm_backward_on_cpu(*args: Any) -> tuple[Tensor, Tensor]:
    return _contiguous(reference_norm_backward(*args))


@torch.library.impl(_LIBRARY, "norm_backward_recompute", "CPU")
def _norm_backward_recompute_on_cpu(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _contiguous(reference_norm_backward_recompute(*args))


@torch.library.impl(_LIBRARY, "norm", "CUDA")
def _norm_on_cuda(*args: Any) -> tuple[Tensor, Tensor]:
    return norm_on_gpu.norm(*args)


@torch.library.impl(_LIBRARY, "add_norm", "CUDA")
def _add_norm_on_cuda(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return norm_on_gpu.add_norm(*args)


@torch.library.impl(_LIBRARY, "norm_backward", "CUDA")
def _norm_backward_on_cuda(*args: Any) -> tuple[Tensor, Tensor]:
    return norm_on_gpu.norm_backward(*args)


@torch.library.impl(_LIBRARY, "norm_backward_recompute", "CUDA")
def _norm_backward_recompute_on_cuda(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return norm_on_gpu.norm_backward_recompute(*args)


@torch.library.register_fake("monograph::norm", lib=_LIBRARY)
def _norm_shape(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@torch.library.register_fake("monograph::add_norm", lib=_LIBRARY)
def _add_norm_shape(x: Tensor, other: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), *_norm_shape(x, weight, eps)


@torch.library.register_fake("monograph::norm_backward", lib=_LIBRARY)
def _norm_backward_shape(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape)


@torch.library.register_fake("monograph::norm_backward_recompute", lib=_LIBRARY)
def _norm_backward_recompute_shape(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), weight.new_empty(weight.shape), x.new_empty(x.shape)


def _contiguous(values: Any) -> Any:
    return tuple(value.contiguous() for value in values)


NORM = torch.ops.monograph.norm.default
ADD_NORM = torch.ops.monograph.add_norm.default
NORM_BACKWARD = torch.ops.monograph.norm_backward.default
NORM_BACKWARD_RECOMPUTE = torch.ops.monograph.norm_backward_recompute.default
