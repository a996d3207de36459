"""Sharded parameters as explicit functions over the table: cast, gather, use; and back: cast, scatter, sum.

A unit's parameters are gathered when the unit runs, by functional collectives that a tracer sees like any other op.
The gradient takes the same way back: to the reduce dtype, summed and scattered over the fsdp axis, and summed over
the axes that replicate the parameter.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monograph.annotate import Role, annotate_role
from monograph.axes import Group
from monograph.errors import ConfigError
from monograph.models.model import Model
from monograph.parallel.chunks import ByUnit, Chunks, add_in_reverse
from monograph.parallel.collectives import all_gather_dim, all_reduce_over, reduce_scatter_dim
from monograph.parallel.param_table import ParamTable, Slot


class _GatherParameter(torch.autograd.Function):
    """The piece of a parameter that compute sees, from this rank's shard of it."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, slot: Slot, compute: torch.dtype, reduce: torch.dtype) -> Tensor:
        ctx.where = (slot, reduce)
        return gather_piece(shard.to(compute), slot)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        slot, reduce = ctx.where
        return reduce_gradient(grads[0].to(reduce), slot), None, None, None


def gather_parameter(shard: Tensor, slot: Slot, compute: torch.dtype, reduce: torch.dtype) -> Tensor:
    """The piece of a parameter that compute sees; its gradient is summed and scattered on the way back."""
    with annotate_role(Role.PARAM_ALL_GATHER, slot=slot.name):
        return _GatherParameter.apply(shard, slot, compute, reduce)


class _GatherForChunks(torch.autograd.Function):
    """The same piece once for every chunk: gathered once, with one gradient for each chunk."""

    @staticmethod
    def forward(
        ctx: Any, shard: Tensor, slot: Slot, compute: torch.dtype, reduce: torch.dtype, chunks: Chunks
    ) -> tuple[Tensor, ...]:
        ctx.where = (slot, reduce, chunks)
        piece = gather_piece(shard.to(compute), slot)
        return tuple(piece.view(piece.shape) for _ in range(chunks.count))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        slot, reduce, chunks = ctx.where
        gradients = [grad.to(reduce) for grad in grads]
        if chunks.is_summed_first:
            summed = reduce_gradient(add_in_reverse(gradients), slot)
        else:
            summed = add_in_reverse([reduce_gradient(gradient, slot) for gradient in gradients])
        return summed, None, None, None, None


def gather_for_chunks(
    shard: Tensor, slot: Slot, compute: torch.dtype, reduce: torch.dtype, chunks: Chunks
) -> tuple[Tensor, ...]:
    """A parameter's piece for every chunk; the chunks' gradients are added before or after they are summed."""
    with annotate_role(Role.PARAM_ALL_GATHER, slot=slot.name):
        return _GatherForChunks.apply(shard, slot, compute, reduce, chunks)


def gather_piece(shard: Tensor, slot: Slot) -> Tensor:
    """All ranks' shards along the fsdp axis, without the padding at the end."""
    group = Group.EFSDP_GATHER if slot.is_expert else Group.FSDP_GATHER
    dim = slot.shard.dim
    whole = all_gather_dim(shard, dim, slot.mesh.degree(slot.shard.axis), group)
    size = slot.piece_shape[dim]
    return whole if whole.shape[dim] == size else whole.narrow(dim, 0, size)


def reduce_gradient(gradient: Tensor, slot: Slot) -> Tensor:
    """This rank's shard of the gradient's sum over every rank that has a part of it."""
    mesh, dim, axis = slot.mesh, slot.shard.dim, slot.shard.axis
    missing = slot.local_shape[dim] * mesh.degree(axis) - gradient.shape[dim]
    if missing:
        gradient = F.pad(gradient, [0, 0] * (gradient.ndim - 1 - dim) + [0, missing])
    group = Group.EFSDP_SCATTER if slot.is_expert else Group.FSDP_SCATTER
    shard = reduce_scatter_dim(gradient, dim, mesh.degree(axis), group)
    if slot.is_replicated_over_tp:
        shard = all_reduce_over(shard, Group.TP_GRADS)
    return all_reduce_over(shard, Group.DP_REPLICATE)


class BlocksDiffer(Exception):
    """Blocks that were left out are not like those that were captured."""


def call_function(function: Callable[..., Any], *args: Any) -> Any:
    """The plain way to run a unit's work; activation checkpointing puts another in its place."""
    return function(*args)


class FsdpUnitRunner:
    """Runs one unit of a model with parameters gathered from `state`; the model itself holds none.

    With `reshard`, what backward needs of a gathered parameter is not kept but re-gathered when it is needed.
    `run(function, unit, ...)` computes the unit from its gathered parameters, and may do so once more in backward.
    Units in `chunks` are run, or have a module that is run, chunk by chunk. Blocks in `skipped` return what is carried
    from block to block and, in place of their other results, those of the block before them, detached; they must be
    called like the blocks around them.
    """

    def __init__(
        self,
        model: Model,
        table: ParamTable,
        state: Mapping[str, Tensor],
        *,
        compute_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
        reshard: bool = False,
        run: Callable[..., Any] = call_function,
        chunks: ByUnit | None = None,
        skipped: Collection[nn.Module] = (),
    ) -> None:
        self.state, self.run, self.chunks, self.skipped = state, run, chunks or {}, skipped
        self.compute_dtype, self.reduce_dtype, self.reshard = compute_dtype, reduce_dtype, reshard
        self.others: list[int] = []
        self.last_result: Any = None
        units = model.unit_modules()
        self.slots = {unit: table.of_unit(path) for path, unit in units.items()}
        self.carried_counts = {units[unit.path]: len(unit.carry) for unit in model.units()}

    def __call__(self, unit: nn.Module, *args: Any) -> Any:
        carried = self.find_carried(unit)
        if unit in self.skipped:
            if [*map(id, args[carried:])] != self.others:
                raise BlocksDiffer("a block that is left out is called with other arguments than the one before it")
            if not isinstance(self.last_result, tuple):
                return args[0]
            return *args[:carried], *map(detach_all, self.last_result[carried:])
        self.others = [*map(id, args[carried:])]
        result = self.run_unit(unit, *args)
        self.last_result = result if self.skipped else None
        return result

    def find_carried(self, unit: nn.Module) -> int:
        """How many leading results of a unit are the leading arguments of the next one."""
        if unit not in self.carried_counts:
            raise ConfigError(
                f"forward calls a module of type {type(unit).__qualname__} that is not one of the model's units",
                why="units are what parameters are gathered for",
                do="add its path to units() of the model, or call it inside of a unit",
            )
        return self.carried_counts[unit]

    def run_unit(self, unit: nn.Module, *args: Any) -> Any:
        """Gather the unit's parameters and call it."""
        slots = self.slots[unit]
        chunks = self.chunks.get(unit) if torch.is_grad_enabled() else None  # evaluation runs whole
        pieces: dict[tuple[int | None, str], Tensor] = {}
        for name, slot in slots:
            given = (self.state[slot.name], slot, self.compute_dtype, self.reduce_dtype)
            if chunks is None or not chunks.covers(name):
                pieces[None, name] = gather_parameter(*given)
            else:
                pieces |= {(i, name): piece for i, piece in enumerate(gather_for_chunks(*given, chunks))}
        call = call_with_parameters if chunks is None else chunks.call
        work = (call, unit, tuple(pieces), *pieces.values(), *args)
        if not (self.reshard and torch.is_grad_enabled()):
            return self.run(*work)
        named = {name: piece for (_, name), piece in pieces.items()}
        hooks = RegatherHooks(self.state, {name: slot for name, slot in slots}, named, self.compute_dtype)
        with torch.autograd.graph.saved_tensors_hooks(hooks.pack, hooks.unpack):
            return self.run(*work)


def detach_all(value: Any) -> Any:
    """The same tensors, tuples of them or None, without gradients."""
    if isinstance(value, tuple):
        return type(value)(*map(detach_all, value))
    return value.detach() if isinstance(value, Tensor) else value


def call_with_parameters(unit: nn.Module, names: tuple[tuple[int | None, str], ...], *values: Any) -> Any:
    """Run a unit with parameters of these names; they come flat, before its arguments, as `run` can keep them."""
    pieces = {name: value for (_, name), value in zip(names, values[: len(names)], strict=True)}
    return torch.func.functional_call(unit, pieces, values[len(names) :])


class SavedViewSpec(NamedTuple):
    """How to get a saved view of a gathered parameter back."""

    name: str
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class RegatherHooks:
    """Saved-tensor hooks of one unit: views of gathered parameters are kept as recipes, everything else as it is.

    Each parameter is gathered once more when backward first asks for it, and kept until the last of its readers has
    been served. Readers are counted, rather than asked whether they are alive: that would depend on when a finished
    collective releases its buffers, and then one rank would wait in a gather that another does not make.
    """

    def __init__(
        self, state: Mapping[str, Tensor], slots: Mapping[str, Slot], pieces: Mapping[str, Tensor], dtype: torch.dtype
    ) -> None:
        self.state, self.slots, self.dtype = state, slots, dtype
        self.names = {piece.untyped_storage().data_ptr(): name for name, piece in pieces.items() if piece.numel()}
        self.readers: Counter[str] = Counter()
        self.kept: dict[str, Tensor] = {}

    def pack(self, saved: Tensor) -> Tensor | SavedViewSpec:
        """A recipe for what can be re-gathered."""
        name = self.names.get(saved.untyped_storage().data_ptr()) if saved.numel() else None
        if name is None:
            return saved
        self.readers[name] += 1
        return SavedViewSpec(name, saved.size(), saved.stride(), int(saved.storage_offset()))

    def unpack(self, kept: Tensor | SavedViewSpec) -> Tensor:
        """The saved tensor; the first reader of a parameter pays for gathering it."""
        if isinstance(kept, Tensor):
            return kept
        piece = self.kept.pop(kept.name, None)
        if piece is None:
            slot = self.slots[kept.name]
            with torch.no_grad():
                piece = gather_piece(self.state[slot.name].detach().to(self.dtype), slot)
        self.readers[kept.name] -= 1
        if self.readers[kept.name] > 0:
            self.kept[kept.name] = piece
        return piece.as_strided(kept.size, kept.stride, kept.offset)
