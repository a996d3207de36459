"""The loss of a projection to the vocabulary, slice by slice, with its gradients: one op, because it saves memory.

As ops of a graph, every slice makes its logits, their gradient and a new sum of the weight's gradients. Inside of one
op the gradient takes the memory of the logits, and the matmul adds to the sum where it lies.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from monograph.annotate import annotate
from monograph.compat.ops import cast
from monograph.kernels import chunked_cross_entropy_on_gpu
from monograph.kernels.choose import is_fused
from monograph.kernels.cross_entropy import cap_logits, reference_cross_entropy
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor
from monograph.labels import IGNORED_LABEL


def chunked_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    scale: Tensor,
    chunk_tokens: int,
    *,
    kernels: str = "auto",
    logit_cap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss of hidden [tokens, dim], and `scale` times its gradients by hidden and by weight.

    Capped logits are for torch's ops on every device: a slice then has its logits, their caps and slopes in memory.
    """
    if logit_cap:
        return reference_chunked_cross_entropy(hidden, weight, labels, scale, chunk_tokens, logit_cap)
    compute = CHUNKED_CROSS_ENTROPY if is_fused(kernels, hidden) else reference_chunked_cross_entropy
    return compute(hidden, weight, labels, scale, chunk_tokens)


def reference_chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, chunk_tokens: int, logit_cap: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in torch's ops. Partial sums are in fp32: adding many slices in bf16 would lose the small ones."""
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    grad_hidden = []
    slices = zip(hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True)
    for number, (rows, targets) in enumerate(slices):
        with annotate(f"slice {number}"):
            logits, slope = cap_logits(F.linear(rows, weight), logit_cap)
            losses, grad_logits = reference_cross_entropy(logits, targets, scale)
            grad_logits = grad_logits if slope is None else grad_logits * slope
            total = total + losses.sum()
            grad_hidden.append(grad_logits @ weight)
            grad_weight = grad_weight + grad_logits.T @ rows
    return total, torch.cat(grad_hidden), cast(grad_weight, weight.dtype)


def _make_examples() -> list[tuple[Any, ...]]:
    """An odd number of tokens, one of which does not count."""
    labels = torch.tensor([3, 17, IGNORED_LABEL, 0, 19])
    return [(example_tensor(5, 8), example_tensor(20, 8, seed=1), labels, torch.tensor(0.25), 2)]


def _fake_chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, chunk_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    total = hidden.new_empty((), dtype=torch.float32)
    return total, hidden.new_empty(hidden.shape), weight.new_empty(weight.shape)


CHUNKED_CROSS_ENTROPY = custom_op(
    "chunked_cross_entropy(Tensor hidden, Tensor weight, Tensor labels, Tensor scale, int chunk_tokens)"
    " -> (Tensor, Tensor, Tensor)",
    reference=reference_chunked_cross_entropy,
    kernel=chunked_cross_entropy_on_gpu.chunked_cross_entropy,
    fake=_fake_chunked_cross_entropy,
    examples=_make_examples,
    prebuild=True,
).op
