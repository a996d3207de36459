"""The gate of a feed-forward layer, silu(x) * up, forward and backward in one pass over memory each.

Op by op, values as wide as the hidden layer are read and written fourteen times, here eight times. Only the two inputs
are remembered, not silu(x).
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


@torch.library.impl(_LIBRARY, "gate", "CPU")
def _gate_on_cpu(x: Tensor, up: Tensor) -> Tensor:
    return plain_gate(x, up).contiguous()


@torch.library.impl(_LIBRARY, "gate_backward", "CPU")
def _gate_backward_on_cpu(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    of_x, of_up = plain_gate_backward(grad, x, up)
    return of_x.contiguous(), of_up.contiguous()


@torch.library.impl(_LIBRARY, "gate", "CUDA")
def _gate_on_cuda(x: Tensor, up: Tensor) -> Tensor:
    return importlib.import_module("monograph.kernels.on_gpu").gate(x, up)


@torch.library.impl(_LIBRARY, "gate_backward", "CUDA")
def _gate_backward_on_cuda(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return importlib.import_module("monograph.kernels.on_gpu").gate_backward(grad, x, up)


@torch.library.register_fake("monograph::gate", lib=_LIBRARY)
def _gate_shape(x: Tensor, up: Tensor) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.register_fake("monograph::gate_backward", lib=_LIBRARY)
def _gate_backward_shape(grad: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), up.new_empty(up.shape)


GATE = torch.ops.monograph.gate.default
GATE_BACKWARD = torch.ops.monograph.gate_backward.default
