"""Sinks: a learned score for each head that takes a share of the softmax and has no value."""

import torch
from torch import Tensor


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output [batch, queries, heads, channels] and lse [batch, heads, queries] of a softmax that has sinks as well."""
    if sinks is None:
        return out, lse
    scores = sinks.to(lse.dtype).view(1, -1, 1)
    share = torch.sigmoid(lse - scores).transpose(1, 2).unsqueeze(-1)
    return (out.to(lse.dtype) * share).to(out.dtype), torch.logaddexp(lse, scores)


def find_sink_gradient(grad: Tensor, out: Tensor, lse: Tensor, sinks: Tensor | None) -> Tensor:
    """The gradient of sinks [heads]: what their share of the softmax takes from the output; empty without sinks."""
    if sinks is None:
        return grad.new_empty((0,))
    taken = torch.exp(sinks.to(lse.dtype).view(1, -1, 1) - lse)
    given = (grad.to(lse.dtype) * out.to(lse.dtype)).sum(-1).transpose(1, 2)
    return -(taken * given).sum((0, 2)).to(sinks.dtype)
