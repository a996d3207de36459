"""Modules run chunk by chunk: the input cut into equal parts, one call for each, the results put together again.

This is what chunking means: eager mode runs it as it stands, a capture of it is one strategy, and the pass that cuts
an unchunked capture has to give the same bits. So every choice that touches a bit is made here, and stated:

- parts are contiguous, in forward and in backward;
- chunks run in order 0, 1, ..., n - 1, and sums over tokens (router statistics) are added in that order;
- a parameter's gradient is the sum over chunks in the order backward makes them, n - 1, ..., 0, in the reduce dtype.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from monograph.annotate import annotate_chunk
from monograph.errors import ConfigError
from monograph.models.load_balance import RouterStats
from monograph.models.model import Model
from monograph.parallel.overlap_config import ExpertOverlapConfig
from monograph.parallel.replaced_forward import replaced_forward
from monograph.parallel.sequence_chunks import check_sequence_chunks, earlier_keys_kept

Pieces = dict[str, Tensor]


class _Cut(torch.autograd.Function):
    """Equal parts of a value along a dim."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, dim: int, count: int) -> tuple[Tensor, ...]:
        ctx.dim = dim
        return tuple(cut(value, dim, count))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return torch.cat(grads, ctx.dim), None, None


class _Join(torch.autograd.Function):
    """Parts put together along a dim."""

    @staticmethod
    def forward(ctx: Any, dim: int, *parts: Tensor) -> Tensor:
        ctx.dim, ctx.count = dim, len(parts)
        return torch.cat(parts, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *cut(grads[0], ctx.dim, ctx.count)


def cut(value: Tensor, dim: int, count: int) -> list[Tensor]:
    """`count` equal parts, each contiguous."""
    return [part.contiguous() for part in value.split(value.shape[dim] // count, dim)]


@dataclass(frozen=True)
class Chunks:
    """How one module of a unit is run chunk by chunk."""

    path: str
    """Of the module, in the model."""
    root: nn.Module
    prefix: str
    """Of the module's parameters, in the unit: empty when it is the unit itself."""
    dim: int
    count: int
    is_summed_first: bool
    """Gradients of chunks are summed before the reduce_scatter, not after."""

    def covers(self, name: str) -> bool:
        """Whether a parameter of the unit belongs to the module."""
        return name.startswith(self.prefix)

    def call(self, unit: nn.Module, names: tuple[tuple[int | None, str], ...], *values: Any) -> Any:
        """Run the unit with parameters of these names, each of one chunk or (None) of what is not cut."""
        whole: Pieces = {}
        parts: list[Pieces] = [{} for _ in range(self.count)]
        for (chunk, name), value in zip(names, values[: len(names)], strict=True):
            (whole if chunk is None else parts[chunk])[name.removeprefix(self.prefix if chunk is not None else "")] = (
                value
            )
        args = values[len(names) :]
        if self.root is unit:
            return self.run(parts, *args)
        with replaced_forward(self.root, lambda *inner: self.run(parts, *inner)):
            return torch.func.functional_call(unit, whole, args)

    def run(self, parts: Sequence[Pieces], *args: Any) -> tuple[Tensor, RouterStats]:
        """The module's result and its router's statistics, from one call for each chunk."""
        given = self.cut_arguments(args)
        found = []
        with earlier_keys_kept(self.root) if self.dim == 1 else nullcontext():
            for chunk, pieces in enumerate(parts):
                with annotate_chunk(chunk):
                    found.append(torch.func.functional_call(self.root, pieces, given[chunk]))
        stats = merge_stats([stats for _, stats in found], is_batch=self.dim == 0)
        return _Join.apply(self.dim, *(result for result, _ in found)), stats

    def cut_arguments(self, args: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Every chunk's arguments: what has the extent of the first argument is cut, scalars and extent 1 shared."""
        extent = args[0].shape[self.dim]
        if extent % self.count:
            raise ConfigError(
                f"{self.path} gets {list(args[0].shape)}, and dim {self.dim} is to be cut into {self.count} chunks",
                why=f"{extent} is not a multiple of {self.count}",
                do="change training.local_batch_size, training.seq_len or compile.expert_overlap.num_chunks",
            )
        columns = [self.cut_argument(value, args[0]) for value in args]
        return list(zip(*columns, strict=True))

    def cut_argument(self, value: Any, first: Tensor) -> Sequence[Any]:
        """One argument for every chunk; a named tuple is cut field by field."""
        extent = first.shape[self.dim]
        if isinstance(value, tuple):
            fields = [self.cut_argument(each, first) for each in value]
            return [type(value)(*parts) for parts in zip(*fields, strict=True)]
        if isinstance(value, Tensor) and value.dim() > self.dim and value.shape[self.dim] == extent:
            return _Cut.apply(value, self.dim, self.count)
        if value is None or value.dim() == 0 or value.shape[self.dim] == 1:
            return [value] * self.count
        raise ConfigError(
            f"{self.path} gets {list(value.shape)} next to {list(first.shape)}",
            why=f"along dim {self.dim} it has neither {extent} entries, to be cut, nor 1, to be shared",
        )


def merge_stats(parts: Sequence[RouterStats], *, is_batch: bool) -> RouterStats:
    """The statistics of all chunks: chunks of the batch have other sequences, chunks of a sequence other tokens."""

    def merge(values: Sequence[Tensor | None]) -> Tensor | None:
        given = [value for value in values if value is not None]
        if not given:
            return None
        return _Join.apply(0, *given) if is_batch else add_in_order(given)

    loads, *by_sequence = zip(*parts, strict=True)
    return RouterStats(add_in_order(loads), *map(merge, by_sequence))


def find_expert_blocks(model: Model) -> dict[str, nn.Module]:
    """The blocks that have experts, as a child module `moe`, by path."""
    return {path: unit for path, unit in model.blocks().items() if getattr(unit, "moe", None) is not None}


def find_chunks(model: Model, overlap: ExpertOverlapConfig) -> dict[nn.Module, Chunks]:
    """Unit -> how the chosen module in it is run. Blocks without experts have nothing to hide and stay whole."""
    if not overlap.is_on:
        return {}
    found: dict[nn.Module, Chunks] = {}
    for path, unit in find_expert_blocks(model).items():
        root, prefix = (unit, "") if overlap.has_blocks else (unit.get_submodule("moe"), "moe.")
        where = f"{path}.{prefix}".rstrip(".")
        if overlap.selects(where):
            dim = 0 if overlap.chunk_dim == "batch" else 1
            if dim == 1:
                check_sequence_chunks(where, root)
            is_first = overlap.grad_sum == "before_reduce"
            found[unit] = Chunks(where, root, prefix, dim, overlap.num_chunks, is_first)
    if not found:
        blocks = list(find_expert_blocks(model))
        raise ConfigError(
            f"compile.expert_overlap.modules is {overlap.modules!r}, which no module with experts matches",
            why=f"the blocks with experts are {', '.join(blocks)}" if blocks else "the model has no experts",
            do=f"--compile.expert_overlap.modules '{blocks[0].rpartition('.')[0]}.*'" if blocks else "",
        )
    return found


def add_in_order(values: Sequence[Tensor]) -> Tensor:
    """The sum, the first chunk first."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def add_in_reverse(values: Sequence[Tensor]) -> Tensor:
    """The sum, in the order backward comes to the chunks: the last one first."""
    return add_in_order(values[::-1])


ByUnit = Mapping[nn.Module, Chunks]
