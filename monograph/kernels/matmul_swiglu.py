"""A matmul with SwiGLU in its epilogue, and a matmul with the backward of SwiGLU in its epilogue.

The pass fuse_swiglu_epilogue puts these into graphs. On a GPU with a kernel for it (docs/decisions/0012) the epilogue
works on the matmul's result in registers and costs no time of its own. Elsewhere both run one after the other, as two
ops would.
"""

import torch
from torch import Tensor

from monograph.kernels import matmul_swiglu_on_gpu
from monograph.kernels.swiglu import reference_swiglu, reference_swiglu_backward_packed_recompute

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("matmul_swiglu(Tensor x, Tensor weight) -> (Tensor, Tensor)")
_LIBRARY.define("matmul_swiglu_backward(Tensor grad, Tensor weight, Tensor x, Tensor up) -> (Tensor, Tensor)")


def reference_matmul_swiglu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x @ weight.T, and the gate of its left half with its right half."""
    both = x @ weight.t()
    return both, reference_swiglu(*both.chunk(2, dim=-1))


def reference_matmul_swiglu_backward(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a gate's inputs side by side, where its own is grad @ weight; and the gate once more."""
    return reference_swiglu_backward_packed_recompute(grad @ weight, x.flatten(0, -2), up.flatten(0, -2))


@torch.library.impl(_LIBRARY, "matmul_swiglu", "CPU")
def _matmul_swiglu_on_cpu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    both, gated = reference_matmul_swiglu(x, weight)
    return both, gated.contiguous()


@torch.library.impl(_LIBRARY, "matmul_swiglu_backward", "CPU")
def _matmul_swiglu_backward_on_cpu(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    of_both, gated = reference_matmul_swiglu_backward(grad, weight, x, up)
    return of_both.contiguous(), gated.contiguous()


@torch.library.impl(_LIBRARY, "matmul_swiglu", "CUDA")
def _matmul_swiglu_on_cuda(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return matmul_swiglu_on_gpu.matmul_swiglu(x, weight)


@torch.library.impl(_LIBRARY, "matmul_swiglu_backward", "CUDA")
def _matmul_swiglu_backward_on_cuda(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return matmul_swiglu_on_gpu.matmul_swiglu_backward(grad, weight, x, up)


@torch.library.register_fake("monograph::matmul_swiglu", lib=_LIBRARY)
def _matmul_swiglu_shape(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape[0], weight.shape[0]
    return x.new_empty((rows, columns)), x.new_empty((rows, columns // 2))


@torch.library.register_fake("monograph::matmul_swiglu_backward", lib=_LIBRARY)
def _matmul_swiglu_backward_shape(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = grad.shape[0], weight.shape[1]
    return x.new_empty((rows, 2 * columns)), x.new_empty((rows, columns))


MATMUL_SWIGLU = torch.ops.monograph.matmul_swiglu.default
MATMUL_SWIGLU_BACKWARD = torch.ops.monograph.matmul_swiglu_backward.default
