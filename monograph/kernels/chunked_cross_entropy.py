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
from monograph.kernels.cross_entropy import reference_cross_entropy

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define(
    "chunked_cross_entropy(Tensor hidden, Tensor weight, Tensor labels, Tensor scale, int chunk_tokens)"
    " -> (Tensor, Tensor, Tensor)"
)


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, chunk_tokens: int, *, kernels: str = "auto"
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss of hidden [tokens, dim], and `scale` times its gradients by hidden and by weight."""
    compute = CHUNKED_CROSS_ENTROPY if is_fused(kernels, hidden) else reference_chunked_cross_entropy
    return compute(hidden, weight, labels, scale, chunk_tokens)


def reference_chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, chunk_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in torch's ops. Partial sums are in fp32: adding many slices in bf16 would lose the small ones."""
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    grad_hidden = []
    slices = zip(hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True)
    for number, (rows, targets) in enumerate(slices):
        with annotate(f"slice {number}"):
            losses, grad_logits = reference_cross_entropy(F.linear(rows, weight), targets, scale)
            total = total + losses.sum()
            grad_hidden.append(grad_logits @ weight)
            grad_weight = grad_weight + grad_logits.T @ rows
    return total, torch.cat(grad_hidden), cast(grad_weight, weight.dtype)


@torch.library.impl(_LIBRARY, "chunked_cross_entropy", "CPU")
def _chunked_cross_entropy_on_cpu(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return reference_chunked_cross_entropy(*args)


@torch.library.impl(_LIBRARY, "chunked_cross_entropy", "CUDA")
def _chunked_cross_entropy_on_cuda(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return chunked_cross_entropy_on_gpu.chunked_cross_entropy(*args)


@torch.library.register_fake("monograph::chunked_cross_entropy", lib=_LIBRARY)
def _chunked_cross_entropy_shape(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, chunk_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    total = hidden.new_empty((), dtype=torch.float32)
    return total, hidden.new_empty(hidden.shape), weight.new_empty(weight.shape)


CHUNKED_CROSS_ENTROPY = torch.ops.monograph.chunked_cross_entropy.default
