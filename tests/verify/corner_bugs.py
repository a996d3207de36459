"""Wrong gradients, losses and norms on meshes that few people run: sinks, biases and replicas of experts, etp, cp.

Many follow Megatron-LM issue 7452, where gradients of such parameters were silently wrong on some meshes only.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import monograph.execute.base
import monograph.execute.pipeline.build
import monograph.models.decoder
import monograph.parallel.apply
import monograph.parallel.context_all_gather
import monograph.parallel.context_latent
import monograph.parallel.context_ulysses
import monograph.parallel.shard
import monograph.parallel.tensor
import monograph.verify.simulate.captured
from monograph.axes import COORDS, Axis, Group
from monograph.models.gpt_oss.moe import BiasedMoe
from monograph.models.load_balance import LoadBalance
from monograph.models.parallel_plan import ParallelForm
from monograph.models.sequence_part import SequencePart
from monograph.parallel.collectives import all_reduce_over, reduce_scatter_dim
from monograph.parallel.expert import ExchangeDispatch
from monograph.parallel.param_table import ParamTable, Slot
from monograph.parallel.tensor import VocabEmbedding


def thought_to_be_whole(name: str) -> Callable[[], Any]:
    """The table takes a parameter that is cut over tp for a replicated one: gradients of different parts are added."""
    honest = Slot.is_replicated_over_tp.fget
    return lambda: patch.object(Slot, "is_replicated_over_tp", property(lambda s: s.name == name or honest(s)))


def reduced_over(name: str, groups: Mapping[Group, Group]) -> Callable[[], Any]:
    """One parameter's gradient is summed over other groups than its own."""
    honest = monograph.parallel.shard.reduce_gradient

    def scatter(value: Tensor, dim: int, size: int, group: Group) -> Tensor:
        return reduce_scatter_dim(value, dim, size, groups.get(group, group))

    def reduce(value: Tensor, group: Group) -> Tensor:
        return all_reduce_over(value, groups.get(group, group))

    def reduce_gradient(gradient: Tensor, slot: Slot) -> Tensor:
        if slot.name != name:
            return honest(gradient, slot)
        shard = monograph.parallel.shard
        with patch.object(shard, "reduce_scatter_dim", scatter), patch.object(shard, "all_reduce_over", reduce):
            return honest(gradient, slot)

    return lambda: patch.object(monograph.parallel.shard, "reduce_gradient", reduce_gradient)


@contextmanager
def sinks_of_one_slice() -> Iterator[None]:
    """Of the gradients of sinks, those that the second slice of queries gave are lost."""
    honest = monograph.parallel.context_all_gather.ATTENTION_BACKWARD

    def backward(grad: Tensor, queries: Tensor, keys: Tensor, *given: Any) -> Any:
        *found, of_sinks = honest(grad, queries, keys, *given)
        is_second = keys.shape[1] > queries.shape[1] * 2
        return *found, of_sinks * (not is_second)

    with patch.object(monograph.parallel.context_all_gather, "ATTENTION_BACKWARD", backward):
        yield


@contextmanager
def expert_bias_of_every_etp_rank() -> Iterator[None]:
    """Every rank with a part of an expert's channels adds the whole bias of its answer."""
    honest = BiasedMoe.run_experts

    def run_experts(self: BiasedMoe, tokens: Tensor, choice: Any) -> tuple[Tensor, Tensor]:
        out, load = honest(self, tokens, choice)
        shares = choice.scores.new_zeros(choice.scores.shape).scatter(1, choice.experts, choice.weights)
        return out + (getattr(self.dispatch, "etp", 1) - 1) * (shares.to(out.dtype) @ self.bias.weight), load

    with patch.object(BiasedMoe, "run_experts", run_experts):
        yield


@contextmanager
def answers_averaged_over_etp() -> Iterator[None]:
    """The parts of an expert's answer are averaged, where they are to be summed."""
    honest = ExchangeDispatch.combine

    def combine(self: ExchangeDispatch, rows: Tensor, *given: Any) -> Tensor:
        return honest(self, rows / self.etp, *given)

    with patch.object(ExchangeDispatch, "combine", combine):
        yield


@contextmanager
def changed_form(form: ParallelForm, change: Callable[..., None]) -> Iterator[None]:
    """A form of parallelism is put in place, and then changed; `change` gets what the form gets."""
    honest = monograph.parallel.apply.FORMS[form]

    def put(*given: Any) -> None:
        honest(*given)
        change(*given)

    with patch.object(monograph.parallel.apply, "FORMS", monograph.parallel.apply.FORMS | {form: put}):
        yield


def auxiliary_loss_times_cp() -> Any:
    """Auxiliary losses are divided by the tokens of a rank's part of each sequence."""

    def change(_model: Any, _path: str, balance: LoadBalance, _mesh: Any, _coords: Tensor) -> None:
        balance.sequence_parts = 1

    return changed_form(ParallelForm.COUNT_REDUCTION, change)


def auxiliary_loss_of_one_tp_rank() -> Any:
    """Auxiliary losses are computed by the first tensor-parallel rank alone, for its slice of the tokens."""

    def change(_model: Any, _path: str, balance: LoadBalance, _mesh: Any, coords: Tensor) -> None:
        honest = balance.compute_shares
        balance.register_buffer("coords", coords, persistent=False)

        def compute_shares(*given: Any) -> dict[str, Tensor]:
            is_first = balance.coords[COORDS.index(Axis.TP)] == 0
            return {name: value * is_first for name, value in honest(*given).items()}

        balance.compute_shares = compute_shares  # type: ignore[method-assign]

    return changed_form(ParallelForm.COUNT_REDUCTION, change)


@contextmanager
def norm_of_experts_over_their_replicas() -> Iterator[None]:
    """Squares of experts are summed over the ranks that share an expert, and not over the other experts."""

    def compute(table: ParamTable, gradients: Mapping[str, Tensor]) -> Tensor:
        expert = [gradients[slot.name].square().sum() for slot in table.trained if slot.is_expert]
        replicated = table.squares(gradients)
        dense = replicated[0] - torch.stack(expert).sum()
        return torch.sqrt(
            all_reduce_over(dense, Group.SHARDS)
            + all_reduce_over(torch.stack(expert).sum(), Group.EFSDP_SCATTER)
            + all_reduce_over(replicated[1], Group.FSDP_SCATTER)
        )

    with patch.object(monograph.execute.base, "compute_grad_norm", compute):
        yield


@contextmanager
def tied_gradient_of_the_head_alone() -> Iterator[None]:
    """Looking tokens up leaves no gradient in a matrix that the head uses as well."""
    honest = VocabEmbedding.forward

    def forward(self: VocabEmbedding, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            return honest(self, tokens)

    with patch.object(VocabEmbedding, "forward", forward):
        yield


@contextmanager
def tied_gradients_of_own_stages() -> Iterator[None]:
    """Stages of a pipeline that share a matrix do not add up their gradients of it."""
    none = lambda *_given: []  # noqa: E731
    with (
        patch.object(monograph.execute.pipeline.build, "find_tied", none),
        patch.object(monograph.verify.simulate.captured, "find_tied", none),
    ):
        yield


@contextmanager
def windows_of_whole_texts() -> Iterator[None]:
    """Attention over shared sequences forgets that layers have a window."""
    honest = monograph.parallel.context_all_gather.find_rule
    widen = lambda core: honest(core)._replace(window=0)  # noqa: E731
    with patch.object(monograph.parallel.context_all_gather, "find_rule", widen):
        yield


@contextmanager
def chunks_begin_with_slices() -> Iterator[None]:
    """Every slice of a shared sequence begins a chunk of its own."""
    honest = monograph.models.decoder.build_segments

    def build(documents: Tensor | None, kind: Any, part: SequencePart, *, batch: int, length: int, **sizes: Any) -> Any:
        if kind.chunk and not part.is_whole:
            slices = torch.arange(2 * part.count).repeat_interleave(length // (2 * part.count)).expand(batch, -1)
            documents = slices if documents is None else documents * 2 * part.count + slices
        return honest(documents, kind, part, batch=batch, length=length, **sizes)

    with patch.object(monograph.models.decoder, "build_segments", build):
        yield


@contextmanager
def heads_in_another_order() -> Iterator[None]:
    """The heads that ranks exchange for tokens come back from the neighbour's place."""
    honest = monograph.parallel.context_ulysses.take_tokens

    def take_tokens(value: Tensor, degree: int) -> Tensor:
        found = honest(value, degree)
        return found.roll(found.shape[2] // degree, dims=2)

    with patch.object(monograph.parallel.context_ulysses, "take_tokens", take_tokens):
        yield


@contextmanager
def latents_of_the_first_call() -> Iterator[None]:
    """Of the gradients of gathered latents, those that the second slice of queries gave are lost."""
    honest = monograph.parallel.context_latent.add_calls

    def add_calls(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        return honest(first, torch.zeros_like(second))

    with patch.object(monograph.parallel.context_latent, "add_calls", add_calls):
        yield


@contextmanager
def loss_of_every_tp_rank() -> Iterator[None]:
    """Every tensor-parallel rank starts backward from the whole loss, as if it were the only one to have it."""
    loss = monograph.parallel.tensor._VocabCrossEntropy
    honest = loss.backward

    def backward(ctx: Any, *grads: Tensor) -> Any:
        return honest(ctx, grads[0] * 2)

    with patch.object(loss, "backward", staticmethod(backward)):
        yield


@contextmanager
def loss_of_one_replica() -> Iterator[None]:
    """The loss that is shown is summed over the ranks of one replica."""
    honest = monograph.execute.base.all_reduce_over_data

    def reduce(value: Tensor) -> Tensor:
        return all_reduce_over(value, Group.FSDP_SCATTER) if value.is_floating_point() else honest(value)

    with patch.object(monograph.execute.base, "all_reduce_over_data", reduce):
        yield
