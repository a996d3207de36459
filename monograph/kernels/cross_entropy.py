"""Cross entropy of rows of logits, and its gradient with respect to them."""

import torch
import torch.nn.functional as F
from torch import Tensor

from monograph.compat.ops import cast
from monograph.labels import IGNORED_LABEL


def reference_cross_entropy(logits: Tensor, targets: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Losses [rows], fp32, and `scale` times the gradient of each with respect to its logits, in their dtype.

    Both are zero where the label is IGNORED_LABEL, whatever the scale. The gradient is scaled before it is rounded, so
    it is rounded once; the label's is computed on its own, in fp32: a probability close to one would be rounded to it.
    """
    log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    is_counted = targets != IGNORED_LABEL
    labels = targets.where(is_counted, 0).unsqueeze(-1)
    found = log_probs.gather(-1, labels)
    factor = scale.where(is_counted, 0.0).unsqueeze(-1)
    grad = cast(log_probs.exp() * factor, logits.dtype)
    grad = grad.scatter(-1, labels, cast(found.expm1() * factor, logits.dtype))
    return -found.squeeze(-1).where(is_counted, 0.0), grad


def cap_logits(logits: Tensor, cap: float) -> tuple[Tensor, Tensor | None]:
    """cap * tanh(logits / cap), and its derivative; the logits as they are, and None, for a cap of 0."""
    if not cap:
        return logits, None
    share = (logits / cap).tanh()
    return share * cap, 1 - share.square()
