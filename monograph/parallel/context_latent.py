"""Context parallelism of latent attention by all_gather of latents: every rank makes keys and values from them itself.

A latent with the shared key of all heads is a fraction of the keys and values that come from it (576 of 5,120 channels
with 16 heads of DeepSeek-V2-Lite), so much less is sent; but every rank multiplies the latents of whole sequences with
`wkv_b`. Slices, calls of attention and what is saved are as in context_all_gather.py: backward gathers the latents
again and makes keys and values again. Gradients of latents are summed over ranks in fp32; every rank has the part of
`wkv_b`'s gradient that comes from its queries, and these are summed like those of its tokens.
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from monograph.annotate import Role, annotate_role
from monograph.axes import Group
from monograph.compat.ops import cast, finish, start_reduce_scatter
from monograph.errors import ConfigError
from monograph.kernels.attention import ATTENTION, ATTENTION_BACKWARD
from monograph.models.attention_core import AttentionCore
from monograph.models.attention_kind import AttentionKind
from monograph.parallel.context_all_gather import (
    SEQUENCE,
    Rule,
    add_calls,
    annotate_slice,
    by_rank,
    find_rule,
    put_in_order,
    start_gather,
)


class HeadSizes(NamedTuple):
    """Channels of a head that come from the latent."""

    own: int
    """Of a key, without position."""
    values: int


class LatentGatherAttention(nn.Module):
    """Attention whose queries are this rank's part of every sequence, over the latents of all ranks."""

    def __init__(self, core: AttentionCore, sizes: HeadSizes, degree: int) -> None:
        super().__init__()
        self.kind, self.sizes, self.degree = core.kind, sizes, degree
        self.rule = find_rule(core)

    def forward(self, q: Tensor, latents: Tensor, weight: Tensor, segments: Tensor | None) -> Tensor:
        """The output for this rank's queries.

        Args:
            latents: [batch, slice, channels], the latent and the shared key with RoPE.
            weight: what makes keys and values of a latent, [heads x (own + values), channels of the latent].
            segments: a table for each of the rank's slices.
        """
        if segments is None:
            raise ConfigError(
                "attention got no segments, and parallelism.context_parallel_degree is larger than 1",
                why="a rank has two slices of every sequence, and the table says which keys their queries see",
                do="make them in step_inputs by monograph.parts.build_segments (docs/guides/own_model.md)",
            )
        given = (q, latents, weight, segments, self.sizes, self.kind, self.rule, self.degree)
        out: Tensor = _AttendLatents.apply(*given)
        return out


class _AttendLatents(Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        latents: Tensor,
        weight: Tensor,
        segments: Tensor,
        sizes: HeadSizes,
        kind: AttentionKind,
        rule: Rule,
        degree: int,
    ) -> Tensor:
        made = MadeKeys(latents, weight, sizes, degree)
        found = []
        for number, queries in enumerate(q.chunk(2, SEQUENCE)):
            keys, values = made.finish(number, is_causal=rule.causal)
            with annotate_slice(kind, number, keys):
                found.append(ATTENTION(queries.contiguous(), keys, values, segments[:, number], None, *rule))
        out = torch.cat([each[0] for each in found], SEQUENCE)
        lse = torch.cat([each[1] for each in found], 2)
        ctx.save_for_backward(q, latents, weight, segments, out, lse)
        ctx.where = (sizes, kind, rule, degree)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        q, latents, weight, segments, out, lse = ctx.saved_tensors
        sizes, kind, rule, degree = ctx.where
        made = MadeKeys(latents, weight, sizes, degree)
        found = []
        pieces = [each.chunk(2, SEQUENCE) for each in (grads[0], q, out)]
        for number, (grad, queries, result) in enumerate(zip(*pieces, strict=True)):
            keys, values = made.finish(number, is_causal=rule.causal)
            sums = lse.chunk(2, 2)[number].contiguous()
            given = (grad.contiguous(), queries.contiguous(), keys, values, segments[:, number], None)
            with annotate_slice(kind, number, keys):
                found.append(ATTENTION_BACKWARD(*given, result.contiguous(), sums, *rule))
        of_keys, of_values = (torch.cat(add_calls(*(each[index] for each in found)), SEQUENCE) for index in (1, 2))
        of_latents, of_weight = find_gradients(of_keys, of_values, torch.cat(made.latents, SEQUENCE), weight, sizes)
        of_q = torch.cat([each[0] for each in found], SEQUENCE)
        return of_q, scatter(of_latents, latents.dtype, degree), of_weight, None, None, None, None, None


class MadeKeys:
    """Latents of all ranks under way, and the keys and values of those that have arrived."""

    def __init__(self, latents: Tensor, weight: Tensor, sizes: HeadSizes, degree: int) -> None:
        self.weight, self.sizes = weight, sizes
        with annotate_role(Role.CONTEXT_ALL_GATHER):
            self.started = [start_gather(each, degree) for each in latents.chunk(2, SEQUENCE)]
        self.latents: list[Tensor] = []
        self.found: list[tuple[Tensor, Tensor]] = []

    def finish(self, number: int, *, is_causal: bool) -> tuple[Tensor, Tensor]:
        """The keys and values that queries of slice `number` may see, in the order of the sequence."""
        wanted = number + 1 if is_causal else len(self.started)
        for index in range(len(self.found), wanted):
            self.latents.append(put_in_order(finish(self.started[index]), is_reversed=index == 1))
            self.found.append(make_keys(self.latents[-1], self.weight, self.sizes))
        if wanted == 1:
            return self.found[0]
        first, second = self.found
        return torch.cat([first[0], second[0]], SEQUENCE), torch.cat([first[1], second[1]], SEQUENCE)


def make_keys(latents: Tensor, weight: Tensor, sizes: HeadSizes) -> tuple[Tensor, Tensor]:
    """Keys and values [batch, sequence, heads, channels] of latents [batch, sequence, latent | shared key]."""
    rank = weight.shape[1]
    latent, tail = latents.split((rank, latents.shape[-1] - rank), dim=-1)
    rows = F.linear(latent.flatten(0, 1), weight)
    own, values = rows.unflatten(0, latent.shape[:2]).unflatten(-1, (-1, sum(sizes))).split(sizes, dim=-1)
    return torch.cat((own, tail.unsqueeze(2).expand(-1, -1, own.shape[2], -1)), dim=-1), values.contiguous()


def find_gradients(
    of_keys: Tensor, of_values: Tensor, latents: Tensor, weight: Tensor, sizes: HeadSizes
) -> tuple[Tensor, Tensor]:
    """The gradients of the latents, in fp32, and of the weight, from those of keys and values in fp32."""
    own, tail = of_keys.split((sizes.own, of_keys.shape[-1] - sizes.own), dim=-1)
    rows = cast(torch.cat((own, of_values), dim=-1).flatten(2).flatten(0, 1), weight.dtype)
    of_latent = (rows @ weight).to(torch.float32).unflatten(0, latents.shape[:2])
    of_weight = rows.t() @ latents[..., : weight.shape[1]].flatten(0, 1)
    return torch.cat((of_latent, tail.sum(dim=2)), dim=-1), of_weight


def scatter(value: Tensor, dtype: torch.dtype, degree: int) -> Tensor:
    """The sum over ranks of a value of whole sequences, of which every rank gets its two slices."""
    with annotate_role(Role.CONTEXT_REDUCE_SCATTER):
        started = [
            start_reduce_scatter(by_rank(half, degree, is_reversed=number == 1), degree, Group.CP.value)
            for number, half in enumerate(value.chunk(2, SEQUENCE))
        ]
    return cast(torch.cat([finish(each).squeeze(0) for each in started], SEQUENCE), dtype)
