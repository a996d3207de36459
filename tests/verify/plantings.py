"""Wrong parallel programs, each wrong in one place: what verify exists for. They are planted inside a rank.

A planting is a context manager; it patches the real code, so that one which does not fit it any more fails loudly.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.distributed.fsdp import FSDPModule

import monograph.execute.base
import monograph.execute.fsdp2
import monograph.execute.sharded
import monograph.parallel.apply
import monograph.parallel.collectives
import monograph.parallel.init_shards
import monograph.parallel.mesh_reductions
import monograph.parallel.shard
from monograph.axes import Group
from monograph.models.router import Router
from monograph.parallel.collectives import all_gather_dim, all_reduce_over, reduce_scatter_autograd, reduce_scatter_dim
from monograph.parallel.expert import ExchangeDispatch, SplitSizes
from monograph.parallel.groups import Groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.param_table import Slot
from monograph.train.adamw import AdamW

Planting = Callable[[], Any]


def is_rank(rank: int) -> bool:
    return os.environ["RANK"] == str(rank)


def changed_gradient(name: str, change: Callable[[torch.Tensor, Slot], torch.Tensor]) -> Planting:
    """Explicit sharding hands out a changed gradient of one parameter."""
    honest = monograph.parallel.shard.reduce_gradient

    def reduce_gradient(gradient: torch.Tensor, slot: Slot) -> torch.Tensor:
        reduced = honest(gradient, slot)
        return change(reduced, slot) if slot.name == name else reduced

    return lambda: patch.object(monograph.parallel.shard, "reduce_gradient", reduce_gradient)


def missing_sum(name: str, group: Group) -> Planting:
    """One parameter's gradient is not summed over one group."""
    honest = monograph.parallel.shard.reduce_gradient

    def reduce_gradient(gradient: torch.Tensor, slot: Slot) -> torch.Tensor:
        if slot.name != name:
            return honest(gradient, slot)
        skip = lambda value, over: value if over is group else all_reduce_over(value, over)  # noqa: E731
        with patch.object(monograph.parallel.shard, "all_reduce_over", skip):
            return honest(gradient, slot)

    return lambda: patch.object(monograph.parallel.shard, "reduce_gradient", reduce_gradient)


def thought_to_be_cut(name: str) -> Planting:
    """The table takes a replicated parameter for a cut one: nobody sums its gradient."""
    honest = Slot.is_replicated_over_tp.fget
    return lambda: patch.object(Slot, "is_replicated_over_tp", property(lambda s: s.name != name and honest(s)))


def changed_border(path: str, crossing: Callable[[torch.Tensor], torch.Tensor]) -> Planting:
    """The stream leaves one module in another way."""
    honest = monograph.parallel.apply.add_boundary_collectives

    def add_boundary_collectives(module: torch.nn.Module, rule: Any, mesh: Any) -> None:
        if rule.pattern == path:
            module.register_forward_hook(lambda _m, _a, result: crossing(result))
            if "attention" in path:
                module.register_forward_pre_hook(lambda _m, args: (gather_whole(args[0]), *args[1:]))
        else:
            honest(module, rule, mesh)

    return lambda: patch.object(monograph.parallel.apply, "add_boundary_collectives", add_boundary_collectives)


def gather_whole(stream: torch.Tensor) -> torch.Tensor:
    return monograph.parallel.collectives.all_gather_autograd(stream, 1, 2, Group.TP)


def next_ranks_slice(stream: torch.Tensor) -> torch.Tensor:
    return reduce_scatter_autograd(stream.roll(stream.shape[1] // 2, dims=1), 1, 2, Group.TP)


@contextmanager
def slice_off_in_backward() -> Iterator[None]:
    """What was gathered is scattered back one rank further."""

    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        dim, size, group = ctx.where
        rolled = grads[0].roll(grads[0].shape[dim] // size, dims=dim)
        return reduce_scatter_dim(rolled, dim, size, group), None, None, None

    with patch.object(monograph.parallel.collectives._AllGather, "backward", staticmethod(backward)):
        yield


@contextmanager
def swapped_on_the_way_home() -> Iterator[None]:
    """Rows go home with the sizes they came with."""
    honest = ExchangeDispatch.combine

    def combine(self: ExchangeDispatch, rows: Any, weights: Any, dispatched: Any) -> Any:
        sizes = dispatched.sizes
        return honest(
            self, rows, weights, dispatched._replace(sizes=SplitSizes(sizes.received, sizes.sent, sizes.gathered))
        )

    with patch.object(ExchangeDispatch, "combine", combine):
        yield


@contextmanager
def swapped_in_backward() -> Iterator[None]:
    """The exchange's backward forgets that the gradients take the way back."""

    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        sent, received, group = ctx.where
        back = monograph.parallel.collectives.all_to_all(grads[0].contiguous(), received, sent, group.value)
        return back, None, None, None

    with patch.object(monograph.parallel.collectives._AllToAll, "backward", staticmethod(backward)):
        yield


@contextmanager
def norm_of_replicas_counted_twice() -> Iterator[None]:
    def compute(table: Any, gradients: Any) -> torch.Tensor:
        return torch.sqrt(all_reduce_over(table.squares(gradients).sum(), Group.SHARDS))

    with patch.object(monograph.execute.base, "compute_grad_norm", compute):
        yield


@contextmanager
def norm_of_own_shards_only() -> Iterator[None]:
    def compute(table: Any, gradients: Any) -> torch.Tensor:
        return torch.sqrt(table.squares(gradients).sum())

    with patch.object(monograph.execute.base, "compute_grad_norm", compute):
        yield


@contextmanager
def without_offset(layer: type) -> Iterator[None]:
    """A layer with a part of the vocabulary believes to have the first one."""
    honest = layer.forward

    def forward(self: Any, *args: Any) -> Any:
        with patch.object(self, "coords", torch.zeros_like(self.coords)):
            return honest(self, *args)

    with patch.object(layer, "forward", forward):
        yield


@contextmanager
def loads_of_own_tokens_only() -> Iterator[None]:
    with patch.object(monograph.execute.base, "all_reduce_over_tokens", lambda load: load):
        yield


@contextmanager
def counts_of_own_tokens_only() -> Iterator[None]:
    with patch.object(monograph.parallel.expert.CountReduction, "__call__", lambda _self, counts: counts):
        yield


@contextmanager
def own_sequences_only() -> Iterator[None]:
    honest = monograph.execute.base.MeshStep.compute_scalars

    def all_reduce_over(self: Any, batches: Any) -> dict[str, torch.Tensor]:
        own = sum(batch["tokens"].shape[0] for batch in batches)
        return honest(self, batches) | {"sequences": torch.tensor(own)}

    with patch.object(monograph.execute.base.MeshStep, "compute_scalars", all_reduce_over):
        yield


@contextmanager
def same_data_everywhere() -> Iterator[None]:
    honest = monograph.execute.base.MeshStep.__init__

    def init(self: Any, model: Any, table: Any, groups: Groups, **options: Any) -> None:
        honest(self, model, table, groups, **options)
        self.data_part = (0, groups.mesh.data_parts)

    with patch.object(monograph.execute.base.MeshStep, "__init__", init):
        yield


@contextmanager
def starting_rows_of_rank_0() -> Iterator[None]:
    honest = monograph.parallel.init_shards.fill_shard

    def fill(local: Any, slot: Slot, start: Any, *, seed: int, rank: int) -> None:
        honest(local, slot, start, seed=seed, rank=0 if slot.name == "layers.1.attention.wq_b.weight" else rank)

    with patch.object(monograph.parallel.init_shards, "fill_shard", fill):
        yield


@contextmanager
def one_rank_updates_more() -> Iterator[None]:
    honest = AdamW.step

    def step(self: AdamW, lr: float, **numbers: Any) -> None:
        honest(self, 2 * lr if is_rank(1) else lr, **numbers)

    with patch.object(AdamW, "step", step):
        yield


@contextmanager
def other_bias_on_one_rank() -> Iterator[None]:
    honest = Router.reset

    def reset(self: Router) -> None:
        honest(self)
        if self.expert_bias is not None and is_rank(1) and os.environ["WORLD_SIZE"] != "1":
            self.expert_bias[0] = 0.3

    with patch.object(Router, "reset", reset):
        yield


@contextmanager
def averaged_by_fsdp2() -> Iterator[None]:
    honest = FSDPModule.set_gradient_divide_factor
    with patch.object(FSDPModule, "set_gradient_divide_factor", lambda self, _factor: honest(self, 2.0)):
        yield


@contextmanager
def peers_of_the_other_axis() -> Iterator[None]:
    """Experts are exchanged with the ranks of another group."""
    honest = Mesh.members
    swapped = {Group.EP: Group.EFSDP_GATHER}

    def members(self: Mesh, group: Group, rank: int) -> tuple[int, ...]:
        return honest(self, swapped.get(group, group), rank)

    with patch.object(Mesh, "members", members):
        yield


@contextmanager
def gathered_in_another_order() -> Iterator[None]:
    """One parameter's shards are put together the wrong way round."""

    def wrong(value: torch.Tensor, dim: int, size: int, group: Group) -> torch.Tensor:
        whole = all_gather_dim(value, dim, size, group)
        is_target = group is Group.FSDP_GATHER and whole.shape == (264, 64)
        return torch.cat([whole.narrow(0, 132, 132), whole.narrow(0, 0, 132)]) if is_target else whole

    with patch.object(monograph.parallel.shard, "all_gather_dim", wrong):
        yield
