"""Cross entropy of rows of logits, and its gradient with respect to them.

Op by op this writes the log-probabilities in fp32, reads them again for the probabilities and again to cast them: four
times the memory traffic of a kernel that reads bf16 logits twice and writes bf16 gradients.
"""

import importlib

import torch
import torch.nn.functional as F
from torch import Tensor

from monograph.compat.ops import cast
from monograph.kernels.choose import is_fused

IGNORED = -100
"""The label of tokens that do not count."""

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("cross_entropy(Tensor logits, Tensor targets) -> (Tensor, Tensor)")


def cross_entropy(logits: Tensor, targets: Tensor, *, kernels: str = "auto") -> tuple[Tensor, Tensor]:
    """Losses [rows], fp32, and the gradient of each row's loss with respect to its logits, in their dtype.

    Rows whose label is IGNORED get some loss and some gradient: the caller leaves them out, where that costs less.
    """
    compute = CROSS_ENTROPY if is_fused(kernels, logits) else plain_cross_entropy
    return compute(logits, targets)


def plain_cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The same in torch's ops.

    The label's gradient is computed on its own, in fp32: a probability close to one would be rounded to it.
    """
    log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    labels = targets.where(targets != IGNORED, 0).unsqueeze(-1)
    found = log_probs.gather(-1, labels)
    grad = cast(log_probs.exp(), logits.dtype).scatter(-1, labels, cast(found.expm1(), logits.dtype))
    return -found.squeeze(-1), grad


@torch.library.impl(_LIBRARY, "cross_entropy", "CPU")
def _cross_entropy_on_cpu(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    losses, grad = plain_cross_entropy(logits, targets)
    return losses, grad.contiguous()


@torch.library.impl(_LIBRARY, "cross_entropy", "CUDA")
def _cross_entropy_on_cuda(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return importlib.import_module("monograph.kernels.on_gpu").cross_entropy(logits, targets, IGNORED)


@torch.library.register_fake("monograph::cross_entropy", lib=_LIBRARY)
def _cross_entropy_shape(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    return logits.new_empty(logits.shape[:-1], dtype=torch.float32), logits.new_empty(logits.shape)


CROSS_ENTROPY = torch.ops.monograph.cross_entropy.default
