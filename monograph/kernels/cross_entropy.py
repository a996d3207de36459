"""Cross entropy of rows of logits, and its gradient with respect to them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from monograph.compat.ops import cast

IGNORED = -100
"""The label of tokens that do not count."""


def plain_cross_entropy(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [rows], fp32, and the gradient of each row's loss with respect to its logits, in their dtype.

    Rows whose label is IGNORED get some loss and some gradient: the caller leaves them out, where that costs less. The
    label's gradient is computed on its own, in fp32: a probability close to one would be rounded to it.
    """
    log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    labels = targets.where(targets != IGNORED, 0).unsqueeze(-1)
    found = log_probs.gather(-1, labels)
    grad = cast(log_probs.exp(), logits.dtype).scatter(-1, labels, cast(found.expm1(), logits.dtype))
    return -found.squeeze(-1), grad
