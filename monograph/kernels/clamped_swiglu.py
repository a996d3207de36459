"""SwiGLU with clamped inputs, as the experts of gpt_oss have it: (up + 1) * gate * sigmoid(alpha * gate).

The gate is at most `limit`, and the up projection at most `limit` in magnitude; beyond that neither has a gradient.
Both come from one matmul whose columns alternate: gate, up, gate, up. So one op reads its result and one writes its
gradient, and nothing is split or joined in between.
"""

import torch
from torch import Tensor

from monograph.kernels import clamped_swiglu_on_gpu
from monograph.kernels.choose import is_fused
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


def clamped_swiglu(pairs: Tensor, *, alpha: float, limit: float, kernels: str = "auto") -> Tensor:
    """[..., hidden] of pairs [..., 2 * hidden], in which gate and up projection alternate."""
    if is_fused(kernels, pairs):
        out: Tensor = fused_clamped_swiglu(pairs, alpha, limit)
        return out
    return reference_clamped_swiglu(pairs, alpha, limit)


def reference_clamped_swiglu(pairs: Tensor, alpha: float, limit: float) -> Tensor:
    """The same in torch's ops."""
    gate, up = pairs.unflatten(-1, (-1, 2)).unbind(-1)
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1) * (gate * (gate * alpha).sigmoid())


def reference_clamped_swiglu_backward(grad: Tensor, pairs: Tensor, alpha: float, limit: float) -> Tensor:
    """The gradient of the pairs."""
    gate, up = pairs.unflatten(-1, (-1, 2)).unbind(-1)
    low, bounded = gate.clamp(max=limit), up.clamp(-limit, limit)
    share = (low * alpha).sigmoid()
    of_gate = grad * (bounded + 1) * share * (1 + alpha * low * (1 - share))
    of_up = grad * low * share
    of_gate, of_up = of_gate.masked_fill(gate > limit, 0.0), of_up.masked_fill(up.abs() > limit, 0.0)
    return torch.stack((of_gate, of_up), -1).flatten(-2)


def _make_examples() -> list[tuple[Tensor, Tensor, float, float]]:
    """Gradient and pairs, some of them beyond the limit; then of an expert without rows."""
    pairs = example_tensor(5, 48) * 2
    return [(example_tensor(5, 24, seed=1), pairs, 1.702, 1.5), (pairs[:0, :24], pairs[:0], 1.702, 7.0)]


CLAMPED_SWIGLU_BACKWARD = custom_op(
    "clamped_swiglu_backward(Tensor grad, Tensor pairs, float alpha, float limit) -> Tensor",
    reference=reference_clamped_swiglu_backward,
    kernel=clamped_swiglu_on_gpu.clamped_swiglu_backward,
    fake=lambda grad, pairs, alpha, limit: pairs.new_empty(pairs.shape),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
fused_clamped_swiglu = custom_op(
    "clamped_swiglu(Tensor pairs, float alpha, float limit) -> Tensor",
    reference=reference_clamped_swiglu,
    kernel=clamped_swiglu_on_gpu.clamped_swiglu,
    fake=lambda pairs, alpha, limit: pairs.new_empty((*pairs.shape[:-1], pairs.shape[-1] // 2)),
    backward=CLAMPED_SWIGLU_BACKWARD,
    save=("pairs", "alpha", "limit"),
    examples=lambda: [args[1:] for args in _make_examples()],
    decompose=True,
    prebuild=True,
)
CLAMPED_SWIGLU = fused_clamped_swiglu.op
