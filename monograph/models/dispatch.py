"""Bringing tokens to their experts and back, when all experts are on this device.

The rows are permuted with plain indexing in both directions: forward and backward are gathers and a sum over a
token's choices. Nothing is added atomically, so the same inputs give the same bits.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from monograph.annotate import annotate
from monograph.kernels.expert_rows import combine_rows, spread_rows


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
    """Brings tokens to their experts and back; `routed` is private to the dispatcher.

    It has at least `rows`, `ends` and `load`, as in `Routed`.
    """

    def dispatch(self, x: Tensor, experts: Tensor, n_experts: int) -> Any: ...

    def combine(self, rows: Tensor, weights: Tensor, routed: Any) -> Tensor: ...


class LocalDispatch:
    """The exchange without a network. Expert parallelism replaces this object by one with the same two methods."""

    def __init__(self, *, kernels: str = "auto") -> None:
        self.kernels = kernels

    def dispatch(self, x: Tensor, experts: Tensor, n_experts: int) -> Routed:
        """Sort the tokens x [tokens, dim] by the experts [tokens, top_k] they chose; equal choices keep their order."""
        with annotate("dispatch"):
            by_expert = sort_by_expert(experts, n_experts)
            rows = spread_rows(x, by_expert.order, by_expert.inverse, experts.shape[1], kernels=self.kernels)
        return Routed(rows, *by_expert)

    def combine(self, rows: Tensor, weights: Tensor, routed: Routed) -> Tensor:
        """Bring the experts' rows back and sum each token's, weighted: [tokens, dim] in the rows' dtype."""
        with annotate("combine"):
            return combine_rows(rows, weights, routed.order, routed.inverse, kernels=self.kernels)


class TokensByExpert(NamedTuple):
    """The (token, choice) pairs sorted by expert; fields as in `Routed`."""

    ends: Tensor
    order: Tensor
    inverse: Tensor
    load: Tensor


def sort_by_expert(experts: Tensor, n_experts: int) -> TokensByExpert:
    """Sort the pairs of experts [tokens, top_k]; equal choices keep their order, and nothing leaves the device."""
    chosen, order = experts.flatten().sort(stable=True)
    indices = torch.arange(order.shape[0], device=order.device)
    inverse = torch.empty_like(order).scatter(0, order, indices)
    ids = torch.arange(n_experts, device=chosen.device)
    ends = torch.searchsorted(chosen, ids, right=True)
    load = ends.diff(prepend=ends.new_zeros(1))
    return TokensByExpert(ends.to(torch.int32), order, inverse, load)
