"""Bringing tokens to their experts and back, when all experts are on this device.

The rows are permuted with plain indexing in both directions: forward and backward are gathers and a sum over a
token's choices. Nothing is added atomically, so the same inputs give the same bits.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

from monograph.annotate import annotate
from monograph.compat.ops import cast


class Routed(NamedTuple):
    """Tokens on their way through the experts."""

    rows: Tensor
    """[tokens * top_k, dim]: one row per token and choice, sorted by expert."""
    ends: Tensor
    """int32 [experts here], on the device: where each expert's rows end."""
    order: Tensor
    """int64 [tokens * top_k]: which (token, choice) a row is."""
    inverse: Tensor
    """int64 [tokens * top_k]: which row a (token, choice) is."""
    load: Tensor
    """int64 [all experts]: rows sent to each expert."""


class Dispatch(Protocol):
    """Brings tokens to their experts and back; what travels in between (`routed`) is the dispatcher's own business.

    It has at least `rows`, `ends` and `load`, as in `Routed`.
    """

    def dispatch(self, x: Tensor, experts: Tensor, n_experts: int) -> Any: ...

    def combine(self, rows: Tensor, weights: Tensor, routed: Any) -> Tensor: ...


class LocalDispatch:
    """The exchange without a network. Expert parallelism replaces this object by one with the same two methods."""

    def dispatch(self, x: Tensor, experts: Tensor, n_experts: int) -> Routed:
        """Sort the tokens x [tokens, dim] by the experts [tokens, top_k] they chose; equal choices keep their order."""
        with annotate("dispatch"):
            by_expert = sort_by_expert(experts, n_experts)
            rows = SpreadRows.apply(x, by_expert.order, by_expert.inverse, experts.shape[1])
        return Routed(rows, *by_expert)

    def combine(self, rows: Tensor, weights: Tensor, routed: Routed) -> Tensor:
        """Bring the experts' rows back and sum each token's, weighted: [tokens, dim] in the rows' dtype."""
        with annotate("combine"):
            return GatherRows.apply(rows, weights, routed.order, routed.inverse)


class ByExpert(NamedTuple):
    """The (token, choice) pairs sorted by expert; fields as in `Routed`."""

    ends: Tensor
    order: Tensor
    inverse: Tensor
    load: Tensor


def sort_by_expert(experts: Tensor, n_experts: int) -> ByExpert:
    """Sort the pairs of experts [tokens, top_k]; equal choices keep their order, and nothing leaves the device."""
    chosen, order = experts.flatten().sort(stable=True)
    places = torch.arange(order.shape[0], device=order.device)
    inverse = torch.empty_like(order).scatter(0, order, places)
    ids = torch.arange(n_experts, device=chosen.device)
    ends = torch.searchsorted(chosen, ids, right=True)
    load = ends.diff(prepend=ends.new_zeros(1))
    return ByExpert(ends.to(torch.int32), order, inverse, load)


class SpreadRows(Function):
    """A copy of its token for every row; backward sums a token's rows in the order of its choices."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, order: Tensor, inverse: Tensor, top_k: int) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.top_k = top_k
        return x[order // top_k]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inverse,) = ctx.saved_tensors
        return grad[inverse].unflatten(0, (-1, ctx.top_k)).sum(dim=1), None, None, None


class GatherRows(Function):
    """The weighted sum of a token's rows, accumulated in fp32; backward hands each row its share.

    A Function of its own because autograd would keep the products in fp32, several times the size of the rows.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, order, inverse)
        picked = rows[inverse].unflatten(0, tuple(weights.shape))
        return cast((picked * weights.unsqueeze(-1)).sum(dim=1), rows.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        rows, weights, order, inverse = ctx.saved_tensors
        spread = grad[order // weights.shape[1]]
        grad_rows = cast(spread * weights.flatten()[order].unsqueeze(-1), rows.dtype)
        shares = (cast(rows, weights.dtype) * spread).sum(dim=-1)
        return grad_rows, shares[inverse].view_as(weights), None, None
