"""Tensor and sequence parallelism: boundaries of the stream, and the two layers that know the vocabulary is cut."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from monograph.annotate import Role, annotate_role
from monograph.axes import COORDS, Axis, Group
from monograph.compat.ops import cast
from monograph.kernels.cross_entropy import cap_logits
from monograph.labels import IGNORED_LABEL
from monograph.models.linear import scale_rows
from monograph.models.loss import ChunkedCrossEntropy
from monograph.models.parallel_plan import Boundary
from monograph.parallel.collectives import all_gather_autograd, all_reduce_over, reduce_scatter_autograd

SEQUENCE = 1
"""The dim of the stream [batch, sequence, dim] that is sliced between the boundaries."""


@dataclass(frozen=True)
class BoundaryCollective:
    """Takes the stream across a boundary of a module. Equal ones do the same: so blocks are found to be alike."""

    boundary: Boundary
    degree: int

    def cross(self, residual: Tensor) -> Tensor:
        """The stream on the other side."""
        collective = all_gather_autograd if self.boundary is Boundary.GATHER_SEQUENCE else reduce_scatter_autograd
        return collective(residual, SEQUENCE, self.degree, Group.TP)


class InputBoundary(BoundaryCollective):
    """For a module's first argument, before it runs."""

    def __call__(self, _module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.cross(args[0]), *args[1:]


class OutputBoundary(BoundaryCollective):
    """For a module's result, after it ran."""

    def __call__(self, _module: nn.Module, _args: Any, result: Tensor) -> Tensor:
        return self.cross(result)


def add_input_boundary(module: nn.Module, boundary: Boundary, degree: int) -> None:
    """Take the module's first argument across the boundary before it runs."""
    module.register_forward_pre_hook(InputBoundary(boundary, degree))


def add_output_boundary(module: nn.Module, boundary: Boundary, degree: int) -> None:
    """Take the module's result across the boundary after it ran."""
    module.register_forward_hook(OutputBoundary(boundary, degree))


class VocabEmbedding(nn.Module):
    """An embedding that holds a run of the vocabulary's rows: other ranks' tokens look up nothing.

    The result is a part: summed over the tensor-parallel ranks it is the embedding.
    """

    coords: Tensor

    def __init__(self, weight: nn.Parameter, coords: Tensor, scales: Mapping[torch.dtype, float]) -> None:
        super().__init__()
        self.weight, self.scales = weight, scales
        self.register_buffer("coords", coords, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.weight.shape[0]
        local = tokens - self.coords[COORDS.index(Axis.TP)] * rows
        is_here = (local >= 0) & (local < rows)
        found = F.embedding(local.where(is_here, 0), self.weight) * is_here.unsqueeze(-1).to(self.weight.dtype)
        return scale_rows(found, self.scales)


class VocabLoss(nn.Module):
    """Cross entropy of logits whose columns are spread over ranks: no rank ever holds a whole row of them."""

    coords: Tensor

    def __init__(self, whole: ChunkedCrossEntropy, coords: Tensor, vocab_size: int) -> None:
        super().__init__()
        self.chunk_tokens, self.logit_cap = whole.chunk_tokens, whole.logit_cap
        self.vocab_size = vocab_size
        self.register_buffer("coords", coords, persistent=False)

    def forward(self, hidden: Tensor, weight: Tensor, labels: Tensor, valid_tokens: Tensor | None = None) -> Tensor:
        hidden, labels = hidden.flatten(0, -2), labels.flatten()
        if valid_tokens is None:
            valid_tokens = (labels != IGNORED_LABEL).sum().clamp(min=1)
        scale = valid_tokens.to(torch.float32).reciprocal()
        first = self.coords[COORDS.index(Axis.TP)] * weight.shape[0]
        columns = torch.arange(weight.shape[0], device=weight.device) + first
        is_padding = columns >= self.vocab_size
        if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
            given = (first, is_padding, self.chunk_tokens, self.logit_cap)
            return _VocabCrossEntropy.apply(hidden, weight, labels, scale, *given)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        for rows, targets in zip(hidden.split(self.chunk_tokens), labels.split(self.chunk_tokens), strict=True):
            loss = loss + compute_vocab_slice(rows, weight, targets, first, is_padding, self.logit_cap)[0]
        return loss * scale


class _VocabCrossEntropy(Function):
    """Like `SlicedCrossEntropy`; the gradient of `hidden` is this rank's part of a sum over the ranks."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        scale: Tensor,
        first: Tensor,
        is_padding: Tensor,
        chunk_tokens: int,
        logit_cap: float,
    ) -> Tensor:
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        grad_hidden = []
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for rows, targets in zip(hidden.split(chunk_tokens), labels.split(chunk_tokens), strict=True):
            part, grad_logits = compute_vocab_slice(rows, weight, targets, first, is_padding, logit_cap)
            loss = loss + part
            grad_logits = cast(grad_logits * scale, hidden.dtype)
            grad_hidden.append(grad_logits @ weight)
            grad_weight = grad_weight + grad_logits.T @ rows
        ctx.save_for_backward(torch.cat(grad_hidden), cast(grad_weight, weight.dtype))
        return loss * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_hidden, grad_weight = ctx.saved_tensors
        grad = grads[0]
        scaled = grad_hidden * cast(grad, grad_hidden.dtype), grad_weight * cast(grad, grad_weight.dtype)
        return *scaled, None, None, None, None, None, None


def compute_vocab_slice(
    rows: Tensor, weight: Tensor, targets: Tensor, first: Tensor, is_padding: Tensor, logit_cap: float
) -> tuple[Tensor, Tensor]:
    """The whole loss of one slice, and its gradient with respect to this rank's logits, both fp32."""
    logits, slope = cap_logits(F.linear(rows, weight), logit_cap)
    logits = logits.float().masked_fill(is_padding, float("-inf"))
    with annotate_role(Role.LOSS_ALL_REDUCE):
        highest = all_reduce_over(logits.amax(dim=-1), Group.TP, "max")
    shifted = logits - highest.unsqueeze(-1)
    exps = shifted.exp()
    valid = targets != IGNORED_LABEL
    local = targets - first
    is_here = valid & (local >= 0) & (local < weight.shape[0])
    safe = local.where(is_here, 0).unsqueeze(-1)
    picked = shifted.gather(-1, safe).squeeze(-1).where(is_here, 0.0)
    with annotate_role(Role.LOSS_ALL_REDUCE):
        sums = all_reduce_over(torch.stack([exps.sum(dim=-1), picked]), Group.TP)
    loss = (sums[0].log() - sums[1]).where(valid, 0.0).sum()
    grad = exps / sums[0].unsqueeze(-1)
    grad = grad.scatter_add(-1, safe, -is_here.unsqueeze(-1).to(torch.float32))
    grad = grad * valid.unsqueeze(-1)
    return loss, grad if slope is None else grad * slope
