"""RMS norm, forward and backward in one pass over memory each, also together with the addition beside it.

Op by op a norm's backward reads its inputs twice (torch has one kernel for the input's gradient and another for the
weight's), and the residual additions around it read and write the stream again. The ops for a norm with its addition
are put into graphs by the pass fuse_kernels; they round where the two ops would, so they give the same bits.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from monograph.compat.ops import cast
from monograph.kernels import norm_on_gpu
from monograph.kernels.choose import is_fused
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


def norm(x: Tensor, weight: Tensor, eps: float, *, kernels: str = "auto") -> Tensor:
    """x divided by the root mean square of its last dim, times weight, which may be wider; in the dtype of x."""
    if is_fused(kernels, x):
        return fused_norm(x, weight, eps)
    out = F.rms_norm(x.to(weight.dtype), (x.shape[-1],), weight, eps)
    return cast(out, x.dtype)


def wide_dtype(x: Tensor) -> torch.dtype:
    """What the norm is computed in: fp32, and fp64 for values in fp64."""
    return torch.promote_types(x.dtype, torch.float32)


def reference_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The norm in torch's ops, and one over the root mean square of every row, in fp32 at least."""
    wide = x.to(wide_dtype(x))
    rstd = (wide.pow(2).mean(-1, keepdim=True) + eps).rsqrt()
    return cast(wide * rstd * weight.to(wide.dtype), x.dtype), rstd


def reference_add_norm(x: Tensor, other: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """A sum, and what `reference_norm` makes of it."""
    total = x + other
    return total, *reference_norm(total, weight, eps)


def reference_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The gradients of x (plus `other`) and of the weight."""
    scaled, wide = x.to(wide_dtype(x)) * rstd, grad.to(wide_dtype(x))
    inner = wide * weight.to(wide.dtype)
    of_x = cast((inner - scaled * (inner * scaled).mean(-1, keepdim=True)) * rstd, x.dtype)
    of_weight = cast((wide * scaled).flatten(0, -2).sum(0), weight.dtype)
    return (of_x if other is None else of_x + other), of_weight


def reference_norm_backward_recompute(
    grad: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, other: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and the norm once more."""
    again = cast(x.to(wide_dtype(x)) * rstd * weight.to(wide_dtype(x)), x.dtype)
    return *reference_norm_backward(grad, x, weight, rstd, other), again


def _fake_norm(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty((*x.shape[:-1], 1), dtype=wide_dtype(x))


def _make_examples() -> list[tuple[Any, ...]]:
    """Gradient, x, weight, one over its root mean square, and what comes past; x is a part of wider rows, as heads of
    a token are that merged matmuls leave side by side."""
    weight = example_tensor(10, seed=1)
    found = []
    for x in (example_tensor(3, 7, 16)[..., :10], example_tensor(3, 7, 60)[..., :40].unflatten(-1, (4, 10))):
        grad, other = example_tensor(2, *x.shape, seed=2).unbind()
        found += [(grad, x, weight, reference_norm(x, weight, 1e-5)[1], past) for past in (other, None)]
    return found


NORM_BACKWARD = custom_op(
    "norm_backward(Tensor grad, Tensor x, Tensor weight, Tensor rstd, Tensor? other) -> (Tensor, Tensor)",
    reference=reference_norm_backward,
    kernel=norm_on_gpu.norm_backward,
    fake=lambda grad, x, weight, rstd, other: (x.new_empty(x.shape), weight.new_empty(weight.shape)),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
fused_norm = custom_op(
    "norm(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    reference=reference_norm,
    kernel=norm_on_gpu.norm,
    fake=_fake_norm,
    backward=lambda grad, x, weight, rstd: NORM_BACKWARD(grad, x, weight, rstd, None),
    save=("x", "weight"),
    save_outputs=(1,),
    internal=(1,),
    examples=lambda: [(x, weight, 1e-5) for _, x, weight, _, _ in _make_examples()],
    decompose=True,
    prebuild=True,
)
NORM = fused_norm.op
ADD_NORM = custom_op(
    "add_norm(Tensor x, Tensor other, Tensor weight, float eps) -> (Tensor, Tensor, Tensor)",
    reference=reference_add_norm,
    kernel=norm_on_gpu.add_norm,
    fake=lambda x, other, weight, eps: (x.new_empty(x.shape), *_fake_norm(x, weight, eps)),
    examples=lambda: [(x, grad, weight, 1e-5) for grad, x, weight, _, _ in _make_examples()],
    decompose=True,
    prebuild=True,
).op
NORM_BACKWARD_RECOMPUTE = custom_op(
    "norm_backward_recompute(Tensor grad, Tensor x, Tensor weight, Tensor rstd, Tensor? other) "
    "-> (Tensor, Tensor, Tensor)",
    reference=reference_norm_backward_recompute,
    kernel=norm_on_gpu.norm_backward_recompute,
    fake=lambda grad, x, weight, rstd, other: (
        x.new_empty(x.shape),
        weight.new_empty(weight.shape),
        x.new_empty(x.shape),
    ),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
