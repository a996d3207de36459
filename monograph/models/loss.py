"""Cross entropy over slices of tokens: the logits of the whole batch never exist.

With a vocabulary of 128 thousand, the fp32 logits of one sequence are larger than the model's activations. So a slice
of tokens is projected, its loss and its gradient are computed at once, in the forward, and its logits are dropped.
The backward only multiplies what the forward left with the gradient of the loss, which is one.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from monograph.config.configurable import Configurable
from monograph.kernels.chunked_cross_entropy import chunked_cross_entropy
from monograph.kernels.cross_entropy import cap_logits
from monograph.labels import IGNORED_LABEL
from monograph.models.config import Kernels, LossConfig


class ChunkedCrossEntropy(Configurable):
    """The sum of the valid tokens' cross entropy, divided by a number of valid tokens that the caller knows."""

    Config = LossConfig

    def __init__(self, config: LossConfig, *, kernels: Kernels = "auto", logit_cap: float = 0.0) -> None:
        self.chunk_tokens, self.kernels, self.logit_cap = config.chunk_tokens, kernels, logit_cap

    def __call__(self, hidden: Tensor, weight: Tensor, labels: Tensor, valid_tokens: Tensor | None = None) -> Tensor:
        """hidden [..., dim], weight [vocab, dim], labels [...] (-100: ignored) -> scalar fp32.

        `valid_tokens` is the count over the whole global batch, so that micro-batches and devices add up to the mean;
        without it the tokens of this call are counted. A tensor: it changes from step to step.
        """
        hidden, labels = hidden.flatten(0, -2), labels.flatten()
        if valid_tokens is None:
            valid_tokens = (labels != IGNORED_LABEL).sum().clamp(min=1)
        scale = valid_tokens.to(torch.float32).reciprocal()
        if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
            given = (self.chunk_tokens, self.kernels, self.logit_cap)
            return SlicedCrossEntropy.apply(hidden, weight, labels, scale, *given)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for rows, targets in zip(hidden.split(self.chunk_tokens), labels.split(self.chunk_tokens), strict=True):
            total = total + measure_slice(rows, weight, targets, self.logit_cap)
        return total * scale


class SlicedCrossEntropy(Function):
    """Loss and gradients of a projection followed by cross entropy, one slice at a time."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        scale: Tensor,
        chunk_tokens: int,
        kernels: Kernels,
        logit_cap: float,
    ) -> Tensor:
        total, grad_hidden, grad_weight = chunked_cross_entropy(
            hidden, weight, labels, scale, chunk_tokens, kernels=kernels, logit_cap=logit_cap
        )
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total * scale

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * grad, grad_weight * grad, None, None, None, None, None


def measure_slice(rows: Tensor, weight: Tensor, targets: Tensor, logit_cap: float) -> Tensor:
    """The summed loss of one slice."""
    logits, _ = cap_logits(F.linear(rows, weight), logit_cap)
    log_probs = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    valid = targets != IGNORED_LABEL
    labels = targets.where(valid, 0).unsqueeze(-1)
    return -log_probs.gather(-1, labels).squeeze(-1).where(valid, 0.0).sum()
