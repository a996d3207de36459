"""The gate of a feed-forward layer, silu(x) * up, forward and backward in one pass over memory each.

Op by op, values as wide as the hidden layer are read and written fourteen times, here eight times. Only the two inputs
are remembered, not silu(x).

Three more ops are put into graphs by the pass fuse_kernels. `again` also computes the gate once more, where backward
needs it and forward did not keep it; `joined` writes both gradients side by side, for the one matmul that reads them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from monograph.kernels import swiglu_on_gpu
from monograph.kernels.choose import is_fused
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


def swiglu(x: Tensor, up: Tensor, *, kernels: str = "auto") -> Tensor:
    """silu(x) * up."""
    return fused_swiglu(x, up) if is_fused(kernels, x) else reference_swiglu(x, up)


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


def _make_examples() -> list[tuple[Tensor, ...]]:
    """Gradient, gate and up projection: the last two as halves of one matmul, then for an expert without rows."""
    both = example_tensor(3, 7, 40)
    return [(example_tensor(3, 7, 20, seed=1), *both.chunk(2, -1)), (both[:0], both[:0], both[:0])]


def _fake_packed(grad: Tensor, x: Tensor, up: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 2 * x.shape[-1]))


SWIGLU_BACKWARD = custom_op(
    "swiglu_backward(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor)",
    reference=reference_swiglu_backward,
    kernel=swiglu_on_gpu.swiglu_backward,
    fake=lambda grad, x, up: (x.new_empty(x.shape), up.new_empty(up.shape)),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
fused_swiglu = custom_op(
    "swiglu(Tensor x, Tensor up) -> Tensor",
    reference=reference_swiglu,
    kernel=swiglu_on_gpu.swiglu,
    fake=lambda x, up: x.new_empty(x.shape),
    backward=SWIGLU_BACKWARD,
    save=("x", "up"),
    examples=lambda: [args[1:] for args in _make_examples()],
    decompose=True,
    prebuild=True,
)
SWIGLU = fused_swiglu.op
SWIGLU_BACKWARD_RECOMPUTE = custom_op(
    "swiglu_backward_recompute(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor, Tensor)",
    reference=reference_swiglu_backward_recompute,
    kernel=swiglu_on_gpu.swiglu_backward_recompute,
    fake=lambda grad, x, up: (x.new_empty(x.shape), up.new_empty(up.shape), x.new_empty(x.shape)),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
SWIGLU_BACKWARD_PACKED = custom_op(
    "swiglu_backward_packed(Tensor grad, Tensor x, Tensor up) -> Tensor",
    reference=reference_swiglu_backward_packed,
    kernel=swiglu_on_gpu.swiglu_backward_packed,
    fake=_fake_packed,
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
SWIGLU_BACKWARD_PACKED_RECOMPUTE = custom_op(
    "swiglu_backward_packed_recompute(Tensor grad, Tensor x, Tensor up) -> (Tensor, Tensor)",
    reference=reference_swiglu_backward_packed_recompute,
    kernel=swiglu_on_gpu.swiglu_backward_packed_recompute,
    fake=lambda grad, x, up: (_fake_packed(grad, x, up), x.new_empty(x.shape)),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
