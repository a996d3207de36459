"""A product and the gate of its two halves as one op, and a product with the backward of a gate.

The pass fuse_products puts these into graphs. What a product leaves in the processor is there for the gate to use: on
a GPU that has a kernel for it (docs/decisions/0012) nothing is read again and the gate takes no time of its own.
Elsewhere both are computed one after the other, as if they were two ops.
"""

import importlib

import torch
from torch import Tensor

from monograph.kernels.gate import plain_gate, plain_gate_backward_joined_again

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("gated_product(Tensor x, Tensor weight) -> (Tensor, Tensor)")
_LIBRARY.define("product_gate_backward(Tensor grad, Tensor weight, Tensor x, Tensor up) -> (Tensor, Tensor)")


def plain_gated_product(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x @ weight.T, and the gate of its left half with its right half."""
    both = x @ weight.t()
    return both, plain_gate(*both.chunk(2, dim=-1))


def plain_product_gate_backward(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a gate's inputs side by side, where its own is grad @ weight; and the gate once more."""
    return plain_gate_backward_joined_again(grad @ weight, x.flatten(0, -2), up.flatten(0, -2))


@torch.library.impl(_LIBRARY, "gated_product", "CPU")
def _gated_product_on_cpu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    both, gated = plain_gated_product(x, weight)
    return both, gated.contiguous()


@torch.library.impl(_LIBRARY, "product_gate_backward", "CPU")
def _product_gate_backward_on_cpu(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    of_both, gated = plain_product_gate_backward(grad, weight, x, up)
    return of_both.contiguous(), gated.contiguous()


@torch.library.impl(_LIBRARY, "gated_product", "CUDA")
def _gated_product_on_cuda(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return importlib.import_module("monograph.kernels.gated_product_on_gpu").gated_product(x, weight)


@torch.library.impl(_LIBRARY, "product_gate_backward", "CUDA")
def _product_gate_backward_on_cuda(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    on_gpu = importlib.import_module("monograph.kernels.gated_product_on_gpu")
    return on_gpu.product_gate_backward(grad, weight, x, up)


@torch.library.register_fake("monograph::gated_product", lib=_LIBRARY)
def _gated_product_shape(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape[0], weight.shape[0]
    return x.new_empty((rows, columns)), x.new_empty((rows, columns // 2))


@torch.library.register_fake("monograph::product_gate_backward", lib=_LIBRARY)
def _product_gate_backward_shape(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = grad.shape[0], weight.shape[1]
    return x.new_empty((rows, 2 * columns)), x.new_empty((rows, columns))


GATED_PRODUCT = torch.ops.monograph.gated_product.default
PRODUCT_GATE_BACKWARD = torch.ops.monograph.product_gate_backward.default
