"""The loss of a projection to the vocabulary, slice by slice, with its gradients: one op, because it saves memory.

As ops of a graph, every slice makes its logits, their gradient and a new sum of the weight's gradients. Inside of one
op the gradient takes the memory of the logits, and the product adds to the sum where it lies.
"""

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from monograph.annotate import annotate
from monograph.compat.ops import cast
from monograph.kernels.choose import is_fused
from monograph.kernels.cross_entropy import plain_cross_entropy

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define(
    "sliced_loss(Tensor hidden, Tensor weight, Tensor labels, Tensor scale, int slice_tokens)"
    " -> (Tensor, Tensor, Tensor)"
)


def sliced_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, slice_tokens: int, *, kernels: str = "auto"
) -> tuple[Tensor, Tensor, Tensor]:
    """The summed loss of hidden [tokens, dim], and `scale` times its gradients by hidden and by weight."""
    compute = SLICED_LOSS if is_fused(kernels, hidden) else plain_sliced_loss
    return compute(hidden, weight, labels, scale, slice_tokens)


def plain_sliced_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, slice_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The same in torch's ops. Partial sums are in fp32: adding many slices in bf16 would lose the small ones."""
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    grad_hidden = []
    slices = zip(hidden.split(slice_tokens), labels.split(slice_tokens), strict=True)
    for number, (rows, targets) in enumerate(slices):
        with annotate(f"slice {number}"):
            losses, grad_logits = plain_cross_entropy(F.linear(rows, weight), targets, scale)
            total = total + losses.sum()
            grad_hidden.append(grad_logits @ weight)
            grad_weight = grad_weight + grad_logits.T @ rows
    return total, torch.cat(grad_hidden), cast(grad_weight, weight.dtype)


@torch.library.impl(_LIBRARY, "sliced_loss", "CPU")
def _sliced_loss_on_cpu(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return plain_sliced_loss(*args)


@torch.library.impl(_LIBRARY, "sliced_loss", "CUDA")
def _sliced_loss_on_cuda(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
    return importlib.import_module("monograph.kernels.sliced_loss_on_gpu").sliced_loss(*args)


@torch.library.register_fake("monograph::sliced_loss", lib=_LIBRARY)
def _sliced_loss_shape(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, slice_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    total = hidden.new_empty((), dtype=torch.float32)
    return total, hidden.new_empty(hidden.shape), weight.new_empty(weight.shape)


SLICED_LOSS = torch.ops.monograph.sliced_loss.default
