"""What every way of running a step shares: shards by name, sums over the mesh, the checkpoint's view."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from monograph.axes import Axis, Group
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.config import CompileConfig
from monograph.execute.layer import CountingBackend
from monograph.graph.facts import SavePolicy
from monograph.kernels.update import StateForm
from monograph.machine.device import Machine
from monograph.machine.table import CPU
from monograph.models.init import InitSpec
from monograph.models.model import SEED, Model, StepOutput
from monograph.models.sequence_part import SequencePart
from monograph.parallel.boundary import LocalizedShard
from monograph.parallel.groups import Groups
from monograph.parallel.mesh import Mesh
from monograph.parallel.mesh_reductions import all_reduce_over_data, all_reduce_over_tokens, compute_grad_norm
from monograph.parallel.observed_group import SendDigests
from monograph.parallel.param_table import ParamTable
from monograph.passes.config import PassesConfig


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """How a step computes, besides the model and the mesh."""

    dtype: torch.dtype
    """Of the stored shards."""
    compute_dtype: torch.dtype
    reduce_dtype: torch.dtype
    reshard: bool
    """Free gathered parameters after forward."""
    init_specs: Mapping[str, InitSpec]
    """How each parameter begins."""
    seed: int
    micro_batches: int = 1
    """Of an update, over all data-parallel ranks; no more than there are of those: one on each."""
    is_single_pass: bool = False
    """Whether the optimizer updates in a single pass: it reads narrow gradients and writes cast copies of weights."""
    update_state: StateForm = field(default_factory=StateForm)
    """What the optimizer keeps of each parameter."""
    activations: SavePolicy = field(default_factory=SavePolicy)
    """What forward saves for backward."""
    compile: CompileConfig = field(default_factory=CompileConfig)
    passes: PassesConfig = field(default_factory=PassesConfig)
    machine: Machine = CPU
    """What costs are estimated for."""

    @property
    def sum_dtype(self) -> torch.dtype | None:
        """What gradients of an update are added in; None where each rank may have one micro-batch alone."""
        return self.reduce_dtype if self.micro_batches > 1 else None


class MetricSums:
    """Metrics added up over the micro-batches of an update, in buffers that stay where they are."""

    def __init__(self) -> None:
        self.values: dict[str, Tensor] = {}

    def add(self, name: str, value: Tensor) -> None:
        """Add one micro-batch's share."""
        if name in self.values:
            self.values[name].add_(value)
        else:
            self.values[name] = value.detach().clone()

    def take(self) -> dict[str, Tensor]:
        """The sums over all ranks; counting starts again from zero."""
        found = {name: all_reduce_over_tokens(value) for name, value in self.values.items()}
        self.reset()
        return found

    def reset(self) -> None:
        """Count from zero again."""
        for value in self.values.values():
            value.zero_()


class MeshStep(ABC):
    """Forward, loss and backward of this rank's part of a micro-batch; gradients add up in `.grad` until cleared."""

    parameters: Mapping[str, Tensor]
    """This rank's shards by slot name: plain tensors, whoever does the sharding."""
    backend: CountingBackend | None = None
    """The compiler, when anything is compiled."""
    weight_cache: CastWeightCache | None = None
    """Copies of the parameters that this step reads instead of them."""

    def __init__(self, model: Model, table: ParamTable, groups: Groups, *, seed: int = 0) -> None:
        self.model = model
        self.table = self.whole_table = table
        """The slots of this rank, and of the whole model: a pipeline rank has some of them."""
        self.rank = groups.rank
        self.device = groups.device
        self.seed = seed
        self.part = find_sequence_part(groups)
        self.data_part = (groups.mesh.data_part(groups.rank), groups.mesh.data_parts)
        self.metrics = MetricSums()

    @property
    def trained(self) -> dict[str, Tensor]:
        """The shards that an optimizer updates."""
        return {slot.name: self.parameters[slot.name] for slot in self.table.trained}

    @property
    def decayed(self) -> frozenset[str]:
        """The names of those that weight decay shrinks."""
        return frozenset(slot.name for slot in self.table.trained if slot.is_decayed)

    @property
    def ran_passes(self) -> Sequence[str]:
        """Names of the passes that ran on the captured step; none where nothing was captured."""
        return ()

    @property
    def compiled_graphs(self) -> int | None:
        """How many graphs were compiled so far; None when nothing is compiled."""
        return None if self.backend is None else self.backend.graphs

    @abstractmethod
    def run(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        """Add the gradients of a prepared micro-batch and return this rank's share of the loss, detached."""

    @abstractmethod
    def run_evaluation(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        """This rank's share of the loss of a prepared micro-batch; no gradient and no metric is added."""

    def __call__(self, batch: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        """Prepare and run a micro-batch in host memory."""
        return self.run(self.prepare(batch), scalars)

    def evaluate(self, batch: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        """Prepare and evaluate a micro-batch in host memory."""
        return self.run_evaluation(self.prepare(batch), scalars)

    def accumulate(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> Tensor:
        """Add the gradients of all micro-batches of an update; this rank's share of the loss."""
        return sum_in_order([self(batch, scalars) for batch in batches])

    def evaluate_all(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> Tensor:
        """This rank's share of the loss of several micro-batches, without gradients."""
        return sum_in_order([self.evaluate(batch, scalars) for batch in batches])

    def accumulate_one(
        self, batch: Mapping[str, Tensor], scalars: Mapping[str, Tensor], digests: SendDigests
    ) -> Tensor:
        """Add the gradients of one micro-batch, whatever an update has; `digests` observes the groups meanwhile."""
        return self.accumulate([batch], scalars)

    def describe_part(self, part: int) -> str:
        """What runs in a part of `accumulate_one`; empty where there is one part only."""
        return ""

    def find_sums(self) -> list[Tensor]:
        """What an update has added up so far: gradients and metrics, live, in the same order on every rank."""
        gradients = [parameter.grad for parameter in self.trained.values() if parameter.grad is not None]
        return [*gradients, *(self.metrics.values[name] for name in sorted(self.metrics.values))]

    def discard(self) -> None:
        """Drop the gradients and metrics of the micro-batches since the last update."""
        for parameter in self.parameters.values():
            parameter.grad = None
        self.metrics.reset()

    @contextmanager
    def op_by_op(self) -> Iterator[None]:
        """Run whole updates without replaying recordings, so that every collective passes through its group."""
        yield

    def find_missing_memory(self) -> int:
        """Bytes that an update op by op would lack, because recordings keep their memory; 0 where it fits."""
        return 0

    def find_collectives(self) -> Sequence[str]:
        """What each collective of a micro-batch belongs to, in their order; empty where that is not known."""
        return ()

    def find_groups(self) -> set[Group]:
        """The groups that an update communicates over, the same on all ranks of each."""
        return {*Group} - {Group.EP_COUNTS, Group.EP_DISPATCH}  # these are for passes alone

    def close(self) -> None:  # noqa: B027 - most steps have nothing to release
        """Release what must not outlive the process groups; training is over."""

    def prepare(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of this rank's step, on its device, from a whole micro-batch in host memory."""
        inputs = self.model.step_inputs(batch, self.part)
        return {name: value.to(self.device, non_blocking=True) for name, value in inputs.items()}

    def compute_scalars(self, batches: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """What is the same for all micro-batches of an update: counts that sums are divided by, over all ranks that
        read other data, and the seed of a model that draws random numbers. A sequence is counted by the rank that has
        the first part of it."""
        counts = [self.model.count_normalizers(batch) for batch in batches]
        names = self.model.normalizers
        counted = counts if self.part.index == 0 else []
        local = torch.tensor([sum(each[name] for each in counted) for name in names], dtype=torch.int64)
        scalars = dict(zip(names, all_reduce_over_data(local.to(self.device)).unbind(), strict=True))
        if self.model.draws_random:
            scalars[SEED] = torch.tensor(self.seed, device=self.device)
        return scalars

    def total_loss(self, share: Tensor) -> Tensor:
        """The loss of the whole update, over all ranks."""
        return all_reduce_over_data(share)

    def grad_norm(self) -> Tensor:
        """The 2-norm of the whole gradient, every element counted once."""
        return compute_grad_norm(self.table, {name: _gradient(p) for name, p in self.trained.items()})

    @torch.no_grad()
    def finish_batch(self, refusal: Tensor | None) -> dict[str, Tensor]:
        """The metrics of the whole global batch; what changes once an update follows them.

        Where `refusal` is 1 the weights were not changed, and neither is this. Nothing is read on the host.
        """
        metrics = self.metrics.take()
        before = {name: value.clone() for name, value in self.find_kept().items()}
        self.model.finish_update(metrics)
        if refusal is not None:
            for name, value in self.find_kept().items():
                value.copy_(torch.where(refusal.bool(), before[name], value))
        return metrics

    def find_kept(self) -> dict[str, Tensor]:
        """What training changes of the model besides parameters: the persistent buffers, which all ranks share."""
        return {name: self.model.get_buffer(name) for name in self._kept_names}

    @cached_property
    def _kept_names(self) -> tuple[str, ...]:
        parameters = {name for slot in self.whole_table for name in slot.names}
        return tuple(name for name in self.model.state_dict() if name not in parameters)

    def state(self) -> dict[str, Any]:
        """The model's part of a checkpoint: placed shards, and the persistent buffers that all ranks share."""
        placed = {name: self.laid_out_like(name, shard) for name, shard in self.parameters.items()}
        return placed | {name: value.detach() for name, value in self.find_kept().items()}

    def find_row_starts(self, name: str) -> Tensor:
        """Positions in the whole parameter where the rows of this rank's shard begin: random bits are drawn by them."""
        return self.table[name].find_row_starts(self.rank)

    def laid_out_like(self, name: str, value: Tensor) -> Any:
        """A tensor with the layout of parameter `name`, in the form that crosses the checkpoint boundary."""
        return LocalizedShard(value.detach(), self.table[name], self.rank)


class ModuleStep(MeshStep):
    """A step that runs the model's modules, with autograd."""

    @abstractmethod
    def forward(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> StepOutput:
        """The model's output for this rank's part of the batch."""

    @abstractmethod
    def backward(self, objective: Tensor) -> None:
        """Add the gradients of `objective` to the shards' `.grad`, summed over every rank that has a part of them."""

    def run(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        output = self.forward(inputs, scalars)
        for name, value in output.metrics.items():
            self.metrics.add(name, value)
        self.backward(output.objective)
        return output.loss.detach()

    @torch.no_grad()
    def run_evaluation(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        self.model.eval()
        try:
            return self.forward(inputs, scalars).loss
        finally:
            self.model.train()


def find_sequence_part(groups: Groups) -> SequencePart:
    """The part of every sequence that this rank has."""
    return find_part(groups.mesh, groups.mesh.coordinate(groups.rank, Axis.CP))


def find_part(mesh: Mesh, index: int) -> SequencePart:
    """The part of every sequence that ranks with this cp coordinate have."""
    return SequencePart(index, mesh.cp, is_ulysses=mesh.cp_method == "ulysses")


def sum_in_order(shares: Sequence[Tensor]) -> Tensor:
    """The sum, the first micro-batch first."""
    return sum(shares[1:], shares[0])


def _gradient(parameter: Tensor) -> Tensor:
    return parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
