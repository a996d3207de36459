"""Expert parallelism: dispatch tokens to the ranks of their experts, combine the results. Dropless, deterministic.

Each rank routes its own tokens (with tensor parallelism: its own slice of the sequence, so no token is sent twice).
Counts are exchanged first; then every split size reaches the host in ONE blocking copy, and all later shapes depend
on that copy as data, so nothing can read a size before it is there.

With expert-tensor parallelism the rows that arrived on the ranks of an etp group are gathered within it, each rank
computes its slice of the experts' hidden channels, and the parts are summed on the way back.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from monograph.annotate import Role, annotate, annotate_role
from monograph.axes import Group
from monograph.compat.ops import all_gather, all_to_all
from monograph.kernels.expert_rows import combine_rows, spread_rows
from monograph.models.dispatch import sort_by_expert
from monograph.parallel.collectives import all_reduce_over, all_to_all_autograd


class DispatchedTokens(NamedTuple):
    """Tokens that reached their experts, and the way back."""

    rows: Tensor
    """[rows here, dim], sorted by local expert."""
    ends: Tensor
    """int32 [experts here], on the device: where each expert's rows end."""
    load: Tensor
    """int64 [all experts]: rows this rank sent to each expert."""
    sent_order: Tensor
    sent_inverse: Tensor
    """How this rank's (token, choice) pairs were sorted by expert before they left, and back."""
    order: Tensor
    inverse: Tensor
    """How the rows that arrived were sorted by local expert, and back."""
    sizes: "SplitSizes"
    """Rows per peer, on the host."""


class SplitSizes(NamedTuple):
    """Split sizes on the host."""

    sent: list[int]
    """Rows to each ep peer."""
    received: list[int]
    """Rows from each ep peer."""
    gathered: list[int]
    """Rows on each etp peer; one entry without expert-tensor parallelism."""


class ExchangeDispatch:
    """The dispatcher of a mesh with experts spread over `ep` ranks and cut over `etp` ranks."""

    def __init__(self, *, ep: int, etp: int, kernels: str = "auto") -> None:
        self.ep = ep
        self.etp = etp
        self.kernels = kernels

    def dispatch(self, x: Tensor, experts: Tensor, n_experts: int) -> DispatchedTokens:
        """Send each token x [tokens, dim] to the ranks of the experts [tokens, top_k] it chose."""
        with annotate("dispatch"):
            sent = sort_by_expert(experts, n_experts)
            with annotate_role(Role.COUNT_ALL_TO_ALL):
                received = self.exchange_counts(sent.load)
                arriving = all_gather(received.unsqueeze(0), self.etp, Group.ETP.value)
            with annotate_role(Role.SPLIT_SIZES):
                sizes = self.find_sizes(sent.load, received, arriving, rows=experts.numel())
            rows = spread_rows(x, sent.order, sent.inverse, experts.shape[1], kernels=self.kernels)
            rows = all_to_all_autograd(rows, sizes.received, sizes.sent, Group.EP)
            if self.etp > 1:
                rows = all_to_all_autograd(
                    rows.repeat(self.etp, 1), sizes.gathered, [rows.shape[0]] * self.etp, Group.ETP
                )
            ids = torch.arange(arriving.shape[-1], device=x.device).expand(arriving.shape).flatten()
            ids = ids.repeat_interleave(arriving.flatten(), output_size=rows.shape[0])
            here = sort_by_expert(ids.unsqueeze(-1), arriving.shape[-1])
            rows = spread_rows(rows, here.order, here.inverse, 1, kernels=self.kernels)
        return DispatchedTokens(rows, here.ends, sent.load, sent.order, sent.inverse, here.order, here.inverse, sizes)

    def combine(self, rows: Tensor, weights: Tensor, dispatched: DispatchedTokens) -> Tensor:
        """Send the experts' answers home and sum each token's, weighted: [tokens, dim]."""
        with annotate("combine"):
            rows = spread_rows(rows, dispatched.inverse, dispatched.order, 1, kernels=self.kernels)
            sizes = dispatched.sizes
            if self.etp > 1:
                home = sum(sizes.received)
                parts = all_to_all_autograd(rows, [home] * self.etp, sizes.gathered, Group.ETP)
                rows = parts.unflatten(0, (self.etp, home)).sum(0)
            rows = all_to_all_autograd(rows, sizes.sent, sizes.received, Group.EP)
            return combine_rows(rows, weights, dispatched.sent_order, dispatched.sent_inverse, kernels=self.kernels)

    def exchange_counts(self, load: Tensor) -> Tensor:
        """Rows that arrive here: int64 [ep peer, expert here]."""
        even = [load.shape[0] // self.ep] * self.ep
        return all_to_all(load, even, even, Group.EP.value).view(self.ep, -1)

    def find_sizes(self, load: Tensor, received: Tensor, arriving: Tensor, *, rows: int) -> SplitSizes:
        """Every size this exchange needs, in one blocking copy from the device.

        With ep 1 nothing depends on the routing: each rank holds all experts and keeps its `rows`, and its etp peers
        route slices of the same sequences, so they have as many. No size is read from data, and no copy is made.
        """
        if self.ep == 1:
            return SplitSizes([rows], [rows], [rows] * self.etp)
        per_peer = (load.view(self.ep, -1).sum(1), received.sum(1), arriving.sum((1, 2)))
        listed = torch.cat(per_peer).tolist()
        for size in listed:
            torch._check(size >= 0)
        return SplitSizes(listed[: self.ep], listed[self.ep : 2 * self.ep], listed[2 * self.ep :])


@dataclass(frozen=True)
class CountReduction:
    """Sums the counts of all MoE layers over a group in one all_reduce."""

    group: Group

    def __call__(self, counts: Tensor) -> Tensor:
        with annotate_role(Role.ROUTER_STATS):
            return all_reduce_over(counts, self.group)
