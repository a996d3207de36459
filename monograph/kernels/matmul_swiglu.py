"""A matmul with SwiGLU in its epilogue, and a matmul with the backward of SwiGLU in its epilogue.

The pass fuse_swiglu_epilogue puts these into graphs. On a GPU with a kernel for it (docs/decisions/0012) the epilogue
works on the matmul's result in registers and costs no time of its own. Elsewhere both run one after the other, as two
ops would.
"""

from torch import Tensor

from monograph.kernels import matmul_swiglu_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor
from monograph.kernels.swiglu import reference_swiglu, reference_swiglu_backward_packed_recompute


def reference_matmul_swiglu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x @ weight.T, and the gate of its left half with its right half."""
    both = x @ weight.t()
    return both, reference_swiglu(*both.chunk(2, dim=-1))


def reference_matmul_swiglu_backward(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of a gate's inputs side by side, where its own is grad @ weight; and the gate once more."""
    return reference_swiglu_backward_packed_recompute(grad @ weight, x.flatten(0, -2), up.flatten(0, -2))


def _fake_matmul_swiglu(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = x.shape[0], weight.shape[0]
    return x.new_empty((rows, columns)), x.new_empty((rows, columns // 2))


def _fake_matmul_swiglu_backward(grad: Tensor, weight: Tensor, x: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = grad.shape[0], weight.shape[1]
    return x.new_empty((rows, 2 * columns)), x.new_empty((rows, columns))


def _make_backward_examples() -> list[tuple[Tensor, ...]]:
    x, up = example_tensor(2, 6, 32).chunk(2, -1)
    return [(example_tensor(12, 8, seed=1), example_tensor(8, 16, seed=2), x, up)]


MATMUL_SWIGLU = custom_op(
    "matmul_swiglu(Tensor x, Tensor weight) -> (Tensor, Tensor)",
    reference=reference_matmul_swiglu,
    kernel=matmul_swiglu_on_gpu.matmul_swiglu,
    fake=_fake_matmul_swiglu,
    examples=lambda: [(example_tensor(12, 8), example_tensor(32, 8, seed=1))],
    decompose=True,
    prebuild=True,
).op
MATMUL_SWIGLU_BACKWARD = custom_op(
    "matmul_swiglu_backward(Tensor grad, Tensor weight, Tensor x, Tensor up) -> (Tensor, Tensor)",
    reference=reference_matmul_swiglu_backward,
    kernel=matmul_swiglu_on_gpu.matmul_swiglu_backward,
    fake=_fake_matmul_swiglu_backward,
    examples=_make_backward_examples,
    decompose=True,
    prebuild=True,
).op
