"""The gate of a feed-forward layer, silu(x) * up, forward and backward in one pass over memory each.

Op by op, values as wide as the hidden layer are read and written fourteen times, here eight times. Only the two inputs
are remembered, not silu(x).

Three more ops are put into graphs by the pass fuse_kernels. `again` also computes the gate once more, where backward
needs it and forward did not keep it; `joined` writes both gradients side by side, for the one matmul that reads them.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from monograph.kernels import swiglu_on_gpu
from monograph.kernels.choose import is_fused

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("swiglu(Tensor x, Tensor up) -> Tensor")
_LIBRARY.define("swiglu_backward(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor)")
_LIBRARY.define("swiglu_backward_recompute(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define("swiglu_backward_packed(Tensor grad, Tensor x, Tensor up) -> Tensor")
_LIBRARY.define("swiglu_backward_packed_recompute(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor)")


def swiglu(x: Tensor, up: Tensor, *, kernels: str = "auto") -> Tensor:
    """silu(x) * up."""
    return Swiglu.apply(x, up) if is_fused(kernels, x) else reference_swiglu(x, up)


class Swiglu(Function):
    """The gate by our own ops."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(x, up)
        return SWIGLU(x, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return SWIGLU_BACKWARD(grad, *ctx.saved_tensors)


def reference_swiglu(x: Tensor, up: Tensor) -> Tensor:
    """The same in torch's ops."""
    return F.silu(x) * up


def reference_swiglu_backward(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """What autograd does with `reference_swiglu`."""
    return torch.ops.aten.silu_backward(grad * up, x), grad * F.silu(x)


def reference_swiglu_backward_recompute(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and the gate once more."""
    return *reference_swiglu_backward(grad, x, up), reference_swiglu(x, up)


def reference_swiglu_backward_packed(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    """Both gradients side by side."""
    return torch.cat(reference_swiglu_backward(grad, x, up), dim=-1)


def reference_swiglu_backward_packed_recompute(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Both gradients side by side, and the gate once more."""
    return reference_swiglu_backward_packed(grad, x, up), reference_swiglu(x, up)


@torch.library.impl(_LIBRARY, "swiglu", "CPU")
def _swiglu_on_cpu(x: Tensor, up: Tensor) -> Tensor:
    return reference_swiglu(x, up).contiguous()


@torch.library.impl(_LIBRARY, "swiglu_backward", "CPU")
def _swiglu_backward_on_cpu(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    of_x, of_up = reference_swiglu_backward(grad, x, up)
    return of_x.contiguous(), of_up.contiguous()


@torch.library.impl(_LIBRARY, "swiglu_backward_recompute", "CPU")
def _swiglu_backward_recompute_on_cpu(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return *_swiglu_backward_on_cpu(grad, x, up), _swiglu_on_cpu(x, up)


@torch.library.impl(_LIBRARY, "swiglu_backward_packed", "CPU")
def _swiglu_backward_packed_on_cpu(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    return reference_swiglu_backward_packed(grad, x, up).contiguous()


@torch.library.impl(_LIBRARY, "swiglu_backward_packed_recompute", "CPU")
def _swiglu_backward_packed_recompute_on_cpu(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return _swiglu_backward_packed_on_cpu(grad, x, up), _swiglu_on_cpu(x, up)


@torch.library.impl(_LIBRARY, "swiglu", "CUDA")
def _swiglu_on_cuda(x: Tensor, up: Tensor) -> Tensor:
    return swiglu_on_gpu.swiglu(x, up)


@torch.library.impl(_LIBRARY, "swiglu_backward", "CUDA")
def _swiglu_backward_on_cuda(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return swiglu_on_gpu.swiglu_backward(grad, x, up)


@torch.library.impl(_LIBRARY, "swiglu_backward_recompute", "CUDA")
def _swiglu_backward_recompute_on_cuda(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return swiglu_on_gpu.swiglu_backward_recompute(grad, x, up)


@torch.library.impl(_LIBRARY, "swiglu_backward_packed", "CUDA")
def _swiglu_backward_packed_on_cuda(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    return swiglu_on_gpu.swiglu_backward_packed(grad, x, up)


@torch.library.impl(_LIBRARY, "swiglu_backward_packed_recompute", "CUDA")
def _swiglu_backward_packed_recompute_on_cuda(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return swiglu_on_gpu.swiglu_backward_packed_recompute(grad, x, up)


@torch.library.register_fake("monograph::swiglu", lib=_LIBRARY)
def _swiglu_shape(x: Tensor, up: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("monograph::swiglu_backward", lib=_LIBRARY)
def _swiglu_backward_shape(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), up.new_empty(up.shape)


@torch.library.register_fake("monograph::swiglu_backward_recompute", lib=_LIBRARY)
def _swiglu_backward_recompute_shape(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), up.new_empty(up.shape), x.new_empty(x.shape)


@torch.library.register_fake("monograph::swiglu_backward_packed", lib=_LIBRARY)
def _swiglu_backward_packed_shape(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 2 * x.shape[-1]))


@torch.library.register_fake("monograph::swiglu_backward_packed_recompute", lib=_LIBRARY)
def _swiglu_backward_packed_recompute_shape(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return _swiglu_backward_packed_shape(grad, x, up), x.new_empty(x.shape)


SWIGLU = torch.ops.monograph.swiglu.default
SWIGLU_BACKWARD = torch.ops.monograph.swiglu_backward.default
SWIGLU_BACKWARD_RECOMPUTE = torch.ops.monograph.swiglu_backward_recompute.default
SWIGLU_BACKWARD_PACKED = torch.ops.monograph.swiglu_backward_packed.default
SWIGLU_BACKWARD_PACKED_RECOMPUTE = torch.ops.monograph.swiglu_backward_packed_recompute.default
