"""FlexAttention: attention whose mask and scores are functions that a user wrote.

The functions are traced once for each dtype and become graphs inside of two ops, forward and backward, which a captured
step contains as they are. On a CPU torch computes all scores (the reference); on a GPU the ops run compiled only: a
captured step has a pass for that (passes/compile/compile_flex.py), and op by op they are compiled when they first run
(flex_on_gpu.py).

Which blocks of 128 queries see which blocks of 128 keys is data: tables that are computed once for each kind of
attention and micro-batch, and read by all layers of the kind.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from monograph.compat import flex as compat
from monograph.compat.flex import BLOCK, BlockTables, FlexGraphs, ModFunction, evaluate_mask, is_fake, trace_mods
from monograph.kernels.flex_on_gpu import CompiledFlex

MAX_MASK_ELEMENTS = 1 << 27
"""Pairs of a query and a key whose mask exists at one time; longer sequences are evaluated some queries at a time."""


class FlexOp:
    """The functions of one kind of attention; each takes its scalars, then its tensors."""

    def __init__(self, name: str, score: ModFunction, mask: ModFunction) -> None:
        self.name, self.score, self.mask = name, score, mask
        self.graphs: dict[Any, FlexGraphs] = {}
        self.compiled = CompiledFlex(name, compat.flex_attention)
        self.compiled_backward = CompiledFlex(name, compat.flex_attention_backward)

        self._read: tuple[bool, bool] | None = None

    def find_read_scalars(self, tensors: Sequence[Tensor]) -> tuple[bool, bool]:
        """Whether what a query sees depends on the sequence, and on the head."""
        if self._read is None:
            self._read = compat.find_read_scalars(self.mask, tensors)
        return self._read

    def trace(self, q: Tensor, score_tensors: Sequence[Tensor], mask_tensors: Sequence[Tensor]) -> FlexGraphs:
        """The functions as graphs, for queries and tensors of this form."""
        forms = [(tuple(each.shape), each.dtype) for each in (*score_tensors, *mask_tensors)]
        key = (q.dtype, q.device.type, is_fake(q), *forms)
        if key not in self.graphs:
            self.graphs[key] = trace_mods(self.score, self.mask, score_tensors, mask_tensors, like=q)
        return self.graphs[key]

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        tables: BlockTables,
        score_tensors: tuple[Tensor, ...] = (),
        mask_tensors: tuple[Tensor, ...] = (),
        *,
        scale: float,
    ) -> Tensor:
        """The output [batch, queries, heads, value channels]; q, k and v are [batch, sequence, heads, channels]."""
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        if torch.compiler.is_dynamo_compiling():
            mods = _close_over(self.score, 5, score_tensors), _close_over(self.mask, 4, mask_tensors)
            return compat.flex_attention_in_dynamo(q, k, v, tables, *mods, scale=scale).transpose(1, 2)
        given = (self, scale, len(score_tensors), q, k, v, *tables, *score_tensors, *mask_tensors)
        out: Tensor = _FlexAttention.apply(*given)[0]
        return out.transpose(1, 2)


def _close_over(function: ModFunction, count: int, tensors: tuple[Tensor, ...]) -> ModFunction:
    """The function of its scalars alone."""
    if count == 5:
        return lambda score, b, h, q, k: function(score, b, h, q, k, *tensors)
    return lambda b, h, q, k: function(b, h, q, k, *tensors)


class _FlexAttention(torch.autograd.Function):
    """Forward and backward as one op each."""

    @staticmethod
    def forward(ctx: Any, op: FlexOp, scale: float, count: int, *values: Tensor) -> tuple[Tensor, Tensor]:
        ctx.settings = op, scale, count
        q, k, v, tables, *tensors = split(values, count)
        graphs = op.trace(q, *tensors)
        if is_reference(q):
            out, lse = compat.flex_attention(q, k, v, tables, graphs, *tensors, scale=scale)
        else:
            out, lse = op.compiled(q, k, v, tables, graphs=graphs, tensors=tuple(tensors), scale=scale)
        ctx.save_for_backward(*values, out, lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        op, scale, count = ctx.settings
        *values, out, lse = ctx.saved_tensors
        q, k, v, tables, *tensors = split(values, count)
        graphs = op.trace(q, *tensors)
        given: Any = (*grads, q, k, v, out, lse, tables)
        if is_reference(q):
            found = compat.flex_attention_backward(*given, graphs, *tensors, scale=scale)  # type: ignore[misc]
        else:
            found = op.compiled_backward(*given, graphs=graphs, tensors=tuple(tensors), scale=scale)
        return None, None, None, *found, *[None] * (len(values) - len(found))


def is_reference(q: Tensor) -> bool:
    """Whether the op itself is called: by a capture, which keeps it for a pass to compile, and on a CPU."""
    return is_fake(q) or not q.is_cuda


def split(values: Sequence[Tensor], count: int) -> tuple[Any, ...]:
    """q, k, v, the tables, the `count` tensors of the score function, and those of the mask function."""
    start = 3 + len(BlockTables._fields)
    tables = BlockTables(*values[3:start])
    return *values[:3], tables, tuple(values[start : start + count]), tuple(values[start + count :])


def build_block_tables(
    mask: ModFunction, tensors: Sequence[Tensor], *, batch: int, heads: int, length: int, device: torch.device
) -> BlockTables:
    """The tables of a mask function over sequences of this length; 1 sequence or head where all have the same."""
    blocks = -(-length // BLOCK)
    rows = max(1, MAX_MASK_ELEMENTS // (batch * heads * blocks * BLOCK * BLOCK)) * BLOCK
    counts = torch.cat([
        count_pairs(mask, tensors, start, min(rows, length - start), batch, heads, length, device)
        for start in range(0, length, rows)
    ], dim=2)  # fmt: skip
    whole = counts == BLOCK * BLOCK
    partial = (counts > 0) & ~whole
    kinds = (partial, whole, partial.mT, whole.mT)
    return BlockTables(*(each for blocks_seen in kinds for each in order_blocks(blocks_seen)))


def count_pairs(
    mask: ModFunction,
    tensors: Sequence[Tensor],
    start: int,
    rows: int,
    batch: int,
    heads: int,
    length: int,
    device: torch.device,
) -> Tensor:
    """How many pairs of each block of queries from `start` on and each block of keys see each other."""

    def shifted(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return mask(b, h, q + start, k, *tensors)

    seen = evaluate_mask(shifted, (batch, heads, rows, length), device)
    seen = F.pad(seen, (0, -length % BLOCK, 0, -rows % BLOCK))
    return seen.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).sum((3, 5))


def order_blocks(seen: Tensor) -> tuple[Tensor, Tensor]:
    """How many blocks of a row are seen, and which: those that are come first, in order."""
    order = torch.argsort(seen.to(torch.int8), dim=-1, descending=True, stable=True)
    return seen.sum(-1).to(torch.int32), order.to(torch.int32).contiguous()
