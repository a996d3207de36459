"""Context parallelism by all_to_all (Ulysses): all tokens of some heads for some tokens of all heads, in attention.

Every rank has one slice of a sequence. Before attention an all_to_all gives each rank the whole sequence of some heads,
and after it another gives each rank its tokens of all heads. Where there are fewer key heads than ranks, each is sent
to several of them.
"""

from typing import Any

from torch import Tensor, nn
from torch.autograd import Function

from monograph.annotate import Role, annotate_role
from monograph.axes import COORDS, Axis, Group
from monograph.compat.ops import all_to_all
from monograph.models.attention_core import AttentionCore
from monograph.models.cache import LayerCache
from monograph.parallel.context_all_gather import check_no_cache


class UlyssesAttention(nn.Module):
    """Attention over whole sequences with this rank's share of the heads."""

    coords: Tensor

    def __init__(self, core: AttentionCore, degree: int, coords: Tensor) -> None:
        super().__init__()
        self.core, self.degree = core, degree
        self.register_buffer("coords", coords, persistent=False)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Tensor | None = None,
        sinks: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """The output for this rank's tokens, of all heads; `segments` is the table of whole sequences."""
        check_no_cache(cache)
        copies = max(1, self.degree // k.shape[2])
        if copies > 1:
            k, v = (each.repeat_interleave(copies, dim=2) for each in (k, v))
        q, k, v = (take_heads(each, self.degree) for each in (q, k, v))
        if sinks is not None:
            sinks = sinks.unflatten(0, (self.degree, -1)).index_select(0, self.coords[_CP : _CP + 1]).squeeze(0)
        return take_tokens(self.core(q, k, v, segments, sinks), self.degree)


_CP = COORDS.index(Axis.CP)


def take_heads(value: Tensor, degree: int) -> Tensor:
    """[batch, slice, heads, channels] -> [batch, sequence, heads / ranks, channels]."""
    with annotate_role(Role.CONTEXT_ALL_TO_ALL):
        exchanged: Tensor = _Exchange.apply(value.unflatten(2, (degree, -1)).movedim(2, 0), degree)
    return exchanged.movedim(0, 1).flatten(1, 2)


def take_tokens(value: Tensor, degree: int) -> Tensor:
    """The way back: [batch, sequence, heads / ranks, channels] -> [batch, slice, heads, channels]."""
    with annotate_role(Role.CONTEXT_ALL_TO_ALL):
        exchanged: Tensor = _Exchange.apply(value.unflatten(1, (degree, -1)).movedim(1, 0), degree)
    return exchanged.movedim(0, 2).flatten(2, 3)


class _Exchange(Function):
    """Entry i of dim 0 goes to rank i, and what comes from rank i takes its place; the same undoes it."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, degree: int) -> Tensor:
        ctx.degree = degree
        return exchange(value, degree)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return exchange(grads[0], ctx.degree), None


def exchange(value: Tensor, degree: int) -> Tensor:
    """One entry of dim 0 for every rank."""
    return all_to_all(value.contiguous(), [1] * degree, [1] * degree, Group.CP.value)
