"""Context parallelism by all_gather of keys and values: queries stay, and attend to the keys of the whole sequence.

Every rank has two slices of a sequence, of which there are 2 x cp: slice i and slice i from the back (SequencePart).
So there are two all_gathers, each of one slice of every rank, and two calls of attention, one for each slice of
queries.
With causal attention the first slice of queries sees nothing of the second half of the sequence: its call starts when
the first gather is done, and the second gather is under way meanwhile. What a rank's queries see is in its tables.

Gathered keys and values are not saved: backward gathers them again, so that saved activations shrink with the number of
ranks. Their gradients are summed over both calls, and over ranks by reduce_scatter, in fp32.
"""

from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import Function

from monograph.annotate import Role, annotate_attention, annotate_role
from monograph.axes import Group
from monograph.compat.ops import cast, finish, start_all_gather, start_reduce_scatter
from monograph.errors import ConfigError
from monograph.kernels.attention import ATTENTION, ATTENTION_BACKWARD, KERNELS
from monograph.models.attention_core import AttentionCore
from monograph.models.attention_kind import AttentionKind, describe_slice
from monograph.models.cache import LayerCache

SEQUENCE = 1
"""The dim of q, k and v [batch, sequence, heads, channels] that ranks divide."""


class Rule(NamedTuple):
    """What the attention op wants to know besides tensors."""

    scale: float
    causal: bool
    window: int
    kernel: int
    cap: float


def find_rule(core: AttentionCore) -> Rule:
    """The rule of the core that ranks share."""
    return Rule(core.scale, core.kind.causal, core.kind.window, KERNELS.index(core.kernel), core.cap)


class AllGatherAttention(nn.Module):
    """Attention whose queries are this rank's part of every sequence, over the keys and values of all ranks."""

    def __init__(self, core: AttentionCore, degree: int) -> None:
        super().__init__()
        self.kind, self.degree = core.kind, degree
        self.rule = find_rule(core)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Tensor | None = None,
        sinks: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """The output for this rank's queries; `segments` has a table for each of its slices."""
        check_no_cache(cache)
        if segments is None:
            raise ConfigError(
                "attention got no segments, and parallelism.context_parallel_degree is larger than 1",
                why="a rank has two slices of every sequence, and the table says which keys their queries see",
                do="make them in step_inputs by monograph.parts.build_segments (docs/guides/own_model.md)",
            )
        out: Tensor = _AttendAllGather.apply(q, k, v, segments, sinks, self.kind, self.rule, self.degree)
        return out


def check_no_cache(cache: LayerCache | None) -> None:
    """Refuse to go on with earlier tokens: they are on one device."""
    if cache is not None:
        raise ConfigError(
            "a model whose ranks share sequences is to predict with a cache",
            why="the tokens of a cache are not divided among ranks",
            do="--parallelism.context_parallel_degree 1",
        )


class _AttendAllGather(Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Tensor,
        sinks: Tensor | None,
        kind: AttentionKind,
        rule: Rule,
        degree: int,
    ) -> Tensor:
        started = start_gathers(k, v, degree)
        found = []
        for number, queries in enumerate(q.chunk(2, SEQUENCE)):
            keys, values = started.finish(number, is_causal=rule.causal)
            with annotate_slice(kind, number, keys):
                found.append(ATTENTION(queries.contiguous(), keys, values, segments[:, number], sinks, *rule))
        out = torch.cat([each[0] for each in found], SEQUENCE)
        lse = torch.cat([each[1] for each in found], 2)
        ctx.save_for_backward(q, k, v, segments, sinks, out, lse)
        ctx.where = (kind, rule, degree)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, k, v, segments, sinks, out, lse = ctx.saved_tensors
        kind, rule, degree = ctx.where
        started = start_gathers(k, v, degree)
        found = []
        pieces = [each.chunk(2, SEQUENCE) for each in (grads[0], q, out)]
        for number, (grad, queries, result) in enumerate(zip(*pieces, strict=True)):
            keys, values = started.finish(number, is_causal=rule.causal)
            sums = lse.chunk(2, 2)[number].contiguous()
            given = (grad.contiguous(), queries.contiguous(), keys, values, segments[:, number], sinks)
            with annotate_slice(kind, number, keys):
                found.append(ATTENTION_BACKWARD(*given, result.contiguous(), sums, *rule))
        first, second = found
        scattered = [start_scatters(first[index], second[index], degree) for index in (1, 2)]
        of_k, of_v = (torch.cat([finish(each).squeeze(0) for each in halves], SEQUENCE) for halves in scattered)
        of_sinks = None if sinks is None else first[3] + second[3]
        of_q = torch.cat([first[0], second[0]], SEQUENCE)
        return of_q, cast(of_k, k.dtype), cast(of_v, v.dtype), None, of_sinks, None, None, None


def annotate_slice(kind: AttentionKind, number: int, keys: Tensor) -> AbstractContextManager[None]:
    """Mark attention with what the queries of slice `number` see of its keys, on whichever rank.

    The slices of all ranks together are the second half of a sequence, or the first one: with causal attention that is
    all the keys that those queries get.
    """
    first = keys.shape[SEQUENCE] // 2 if number and kind.causal else 0
    return annotate_attention(describe_slice(kind, first))


class StartedGathers:
    """Gathers under way of the first slices of all ranks, and of the second ones."""

    def __init__(self, slices: list[tuple[Tensor, Tensor]]) -> None:
        self.slices = slices
        self.found: list[tuple[Tensor, Tensor]] = []

    def finish(self, number: int, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        """The keys and values that queries of slice `number` may see, in the order of the sequence."""
        wanted = number + 1 if is_causal else len(self.slices)
        for index in range(len(self.found), wanted):
            keys, values = (put_in_order(finish(each), is_reversed=index == 1) for each in self.slices[index])
            self.found.append((keys, values))
        if wanted == 1:
            return self.found[0]
        first, second = self.found
        return torch.cat([first[0], second[0]], SEQUENCE), torch.cat([first[1], second[1]], SEQUENCE)


def start_gathers(k: Tensor, v: Tensor, degree: int) -> StartedGathers:
    """Start to gather both slices of keys and values."""
    with annotate_role(Role.CONTEXT_ALL_GATHER):
        return StartedGathers(
            [
                (start_gather(keys, degree), start_gather(values, degree))
                for keys, values in zip(k.chunk(2, SEQUENCE), v.chunk(2, SEQUENCE), strict=True)
            ]
        )


def start_gather(value: Tensor, degree: int) -> Tensor:
    """Start to gather one slice of every rank: [ranks, batch, slice, heads, channels]."""
    return start_all_gather(value.unsqueeze(0).contiguous(), degree, Group.CP.value)


def put_in_order(gathered: Tensor, *, is_reversed: bool) -> Tensor:
    """Slices by rank -> along the sequence. Of the second slices, the first rank has the last one."""
    slices = gathered.unbind(0)
    return torch.cat(slices[::-1] if is_reversed else slices, SEQUENCE)


def start_scatters(first: Tensor, second: Tensor, degree: int) -> list[Tensor]:
    """Start to sum the gradients of keys, or values, that both calls gave, in fp32; every rank gets its two slices."""
    halves = add_calls(first, second)
    with annotate_role(Role.CONTEXT_REDUCE_SCATTER):
        return [
            start_reduce_scatter(by_rank(each, degree, is_reversed=number == 1), degree, Group.CP.value)
            for number, each in enumerate(halves)
        ]


def add_calls(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of what both calls gave for the first and for the second half of the sequence, in fp32."""
    first, second = first.to(torch.float32), second.to(torch.float32)
    half = second.shape[SEQUENCE] // 2
    low, high = second.split(half, SEQUENCE)
    if first.shape[SEQUENCE] == half:
        return first + low, high
    earlier, later = first.split(half, SEQUENCE)
    return earlier + low, later + high


def by_rank(value: Tensor, degree: int, *, is_reversed: bool) -> Tensor:
    """A half of the sequence as [ranks, batch, slice, heads, channels]."""
    slices = value.chunk(degree, SEQUENCE)
    return torch.stack(slices[::-1] if is_reversed else slices)
