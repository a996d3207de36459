"""The gate of a feed-forward layer, silu(x) * up, forward and backward in one pass over memory each.

Op by op, values as wide as the hidden layer are read and written fourteen times, here eight times. Only the two inputs
are remembered, not silu(x).

Three more ops are put into graphs by the pass fuse_kernels. `again` also computes the gate once more, where backward
needs it and forward did not keep it; `joined` writes both gradients side by side, for the one product that reads them.
"""

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from monograph.kernels.choose import is_fused

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("gate(Tensor x, Tensor up) -> Tensor")
_LIBRARY.define("gate_backward(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor)")
_LIBRARY.define("gate_backward_again(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor, Tensor)")
_LIBRARY.define("gate_backward_joined(Tensor grad, Tensor x, Tensor up) -> Tensor")
_LIBRARY.define("gate_backward_joined_again(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor)")


def gate(x: Tensor, up: Tensor, *, kernels: str = "auto") -> Tensor:
    """silu(x) * up."""
    return Gate.apply(x, up) if is_fused(kernels, x) else plain_gate(x, up)


class Gate(Function):
    """The gate by our own ops."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(x, up)
        return GATE(x, up)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        return GATE_BACKWARD(grad, *ctx.saved_tensors)


def plain_gate(x: Tensor, up: Tensor) -> Tensor:
    """The same in torch's ops."""
    return F.silu(x) * up


def plain_gate_backward(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """What autograd does with `plain_gate`."""
    return torch.ops.aten.silu_backward(grad * up, x), grad * F.silu(x)


def plain_gate_backward_again(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and the gate once more."""
    return *plain_gate_backward(grad, x, up), plain_gate(x, up)


def plain_gate_backward_joined(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    """Both gradients side by side."""
    return torch.cat(plain_gate_backward(grad, x, up), dim=-1)


def plain_gate_backward_joined_again(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """Both gradients side by side, and the gate once more."""
    return plain_gate_backward_joined(grad, x, up), plain_gate(x, up)


@torch.library.impl(_LIBRARY, "gate", "CPU")
def _gate_on_cpu(x: Tensor, up: Tensor) -> Tensor:
    return plain_gate(x, up).contiguous()


@torch.library.impl(_LIBRARY, "gate_backward", "CPU")
def _gate_backward_on_cpu(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    of_x, of_up = plain_gate_backward(grad, x, up)
    return of_x.contiguous(), of_up.contiguous()


@torch.library.impl(_LIBRARY, "gate_backward_again", "CPU")
def _gate_backward_again_on_cpu(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return *_gate_backward_on_cpu(grad, x, up), _gate_on_cpu(x, up)


@torch.library.impl(_LIBRARY, "gate_backward_joined", "CPU")
def _gate_backward_joined_on_cpu(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    return plain_gate_backward_joined(grad, x, up).contiguous()


@torch.library.impl(_LIBRARY, "gate_backward_joined_again", "CPU")
def _gate_backward_joined_again_on_cpu(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return _gate_backward_joined_on_cpu(grad, x, up), _gate_on_cpu(x, up)


@torch.library.impl(_LIBRARY, "gate", "CUDA")
def _gate_on_cuda(x: Tensor, up: Tensor) -> Tensor:
    return importlib.import_module("monograph.kernels.gate_on_gpu").gate(x, up)


@torch.library.impl(_LIBRARY, "gate_backward", "CUDA")
def _gate_backward_on_cuda(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return importlib.import_module("monograph.kernels.gate_on_gpu").gate_backward(grad, x, up)


@torch.library.impl(_LIBRARY, "gate_backward_again", "CUDA")
def _gate_backward_again_on_cuda(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return importlib.import_module("monograph.kernels.gate_on_gpu").gate_backward_again(grad, x, up)


@torch.library.impl(_LIBRARY, "gate_backward_joined", "CUDA")
def _gate_backward_joined_on_cuda(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    return importlib.import_module("monograph.kernels.gate_on_gpu").gate_backward_joined(grad, x, up)


@torch.library.impl(_LIBRARY, "gate_backward_joined_again", "CUDA")
def _gate_backward_joined_again_on_cuda(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return importlib.import_module("monograph.kernels.gate_on_gpu").gate_backward_joined_again(grad, x, up)


@torch.library.register_fake("monograph::gate", lib=_LIBRARY)
def _gate_shape(x: Tensor, up: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("monograph::gate_backward", lib=_LIBRARY)
def _gate_backward_shape(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), up.new_empty(up.shape)


@torch.library.register_fake("monograph::gate_backward_again", lib=_LIBRARY)
def _gate_backward_again_shape(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(x.shape), up.new_empty(up.shape), x.new_empty(x.shape)


@torch.library.register_fake("monograph::gate_backward_joined", lib=_LIBRARY)
def _gate_backward_joined_shape(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 2 * x.shape[-1]))


@torch.library.register_fake("monograph::gate_backward_joined_again", lib=_LIBRARY)
def _gate_backward_joined_again_shape(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return _gate_backward_joined_shape(grad, x, up), x.new_empty(x.shape)


GATE = torch.ops.monograph.gate.default
GATE_BACKWARD = torch.ops.monograph.gate_backward.default
GATE_BACKWARD_AGAIN = torch.ops.monograph.gate_backward_again.default
GATE_BACKWARD_JOINED = torch.ops.monograph.gate_backward_joined.default
GATE_BACKWARD_JOINED_AGAIN = torch.ops.monograph.gate_backward_joined_again.default
