"""The same step on one device, with nothing of the parallel code in it: whole parameters, batch and backward."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monograph.models.freeze import freeze
from monograph.models.init import initialize, materialize
from monograph.models.model import SEED, StepOutput, find_scalars
from monograph.models.sequence_part import WHOLE
from monograph.models.weight_decay import find_decayed
from monograph.train.checkpoint.verify import MODEL_PREFIX
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.optimizer_config import AdamWConfig, OptimizerConfig
from monograph.train.start import fill_tensors
from monograph.verify.plain_adamw import PlainAdamW
from monograph.verify.trace import StepTrace, by_kind, snapshot
from monograph.verify.watch import can_record, recorded

EVALUATION = "evaluation loss"
"""Among a trace's metrics: the loss of the same micro-batches without gradients."""


class Reference:
    """A model on one device that is trained beside the sharded one."""

    def __init__(self, config: TrainerConfig, device: torch.device) -> None:
        with torch.device("meta"):
            self.model = config.model.for_length(config.training.seq_len).build()
        freeze(self.model, config.training.freeze)
        materialize(self.model, device=device, dtype=torch.float32)
        initialize(self.model, seed=config.debug.seed)
        self.device = device
        self.config = config
        self.parameters = dict(self.model.named_parameters())
        self.trained = {name: p for name, p in self.parameters.items() if p.requires_grad}
        stored = self.parameters | buffers_of(self.model)
        fill_tensors(config, {f"{MODEL_PREFIX}{name}": value.detach() for name, value in stored.items()})
        planned, decayed = config.plan_optimizer(), find_decayed(self.model)
        self.optimizer = build_plain_optimizer(planned, self.trained, decayed, seed=config.debug.seed)
        self.metrics: dict[str, Tensor] = {}
        """Sums of the last step."""

    def run(self, batches: Sequence[Batch], *, parts: int) -> StepTrace:
        """Forward and backward over all micro-batches: those of the first of `parts` data-parallel ranks come first."""
        trace = StepTrace(before=snapshot(self.parameters) | snapshot(buffers_of(self.model)))
        scalars = self.compute_scalars(batches)
        reductions = self.count_globally(batches, scalars, parts)
        with recorded(self.model, is_open=can_record(self.config)) as recording:
            for batch, reduction in zip(batches, reductions, strict=True):
                output = self.forward(batch, scalars, reduction)
                output.objective.backward()
                trace.loss += output.loss.item()
                for name, value in output.metrics.items():
                    share = value.double().cpu()
                    trace.metrics[name] = trace.metrics[name] + share if name in trace.metrics else share
        self.metrics = trace.metrics
        trace.outputs = {path: torch.cat(parts) for path, parts in recording.outputs.items()}
        trace.output_gradients = {path: torch.cat(parts) for path, parts in recording.gradients.items()}
        for path, choices in recording.choices.items():
            trace.choices[path] = torch.cat(choices).unflatten(0, trace.outputs[recording.first].shape[:2])
        trace.gradients = snapshot({name: _gradient(p) for name, p in self.trained.items()})
        trace.grad_norm = self.grad_norm().item()
        if self.config.needs_evaluation():
            trace.metrics = trace.metrics | {EVALUATION: self.evaluate(batches, scalars)}
        return trace

    @torch.no_grad()
    def evaluate(self, batches: Sequence[Batch], scalars: Mapping[str, Tensor]) -> Tensor:
        """The loss of the same micro-batches without gradients."""
        self.model.eval()
        losses = [self.forward(batch, scalars).loss.double().cpu() for batch in batches]
        self.model.train()
        return torch.stack(losses).sum()

    def grad_norm(self) -> Tensor:
        """The 2-norm of the whole gradient, summed in fp64: torch's fp32 norm is off by 1e-5 on some CPUs."""
        return torch.stack([_gradient(p).double().square().sum() for p in self.trained.values()]).sum().sqrt().float()

    def compute_scalars(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """What sums over the whole update are divided by, and the seed."""
        counts = [self.model.count_normalizers(batch.tensors) for batch in batches]
        known = {name: sum(each[name] for each in counts) for name in self.model.normalizers}
        known[SEED] = self.config.debug.seed
        return {name: torch.tensor(known[name], device=self.device) for name in find_scalars(self.model)}

    def forward(
        self, batch: Batch, scalars: Mapping[str, Tensor], reduction: Callable[[Tensor], Tensor] | None = None
    ) -> StepOutput:
        """The model's output for one micro-batch; `reduction` gives the router's counts over several of them."""
        tensors = self.model.step_inputs(batch.tensors, WHOLE)
        inputs = {name: value.to(self.device) for name, value in tensors.items()}
        if reduction is not None:
            self.model.load_balance.sum_counts = reduction
        return self.model(**inputs, **scalars)

    def count_globally(
        self, batches: Sequence[Batch], scalars: Mapping[str, Tensor], parts: int
    ) -> list[Callable[[Tensor], Tensor] | None]:
        """For scope `global`: what every micro-batch's counts become, from a forward of all of them.

        The micro-batches that data-parallel ranks run at the same time are one statistic, and here they run one after
        another.
        """
        balance = getattr(self.model, "load_balance", None)
        if balance is None or not balance.config.needs_counts or balance.config.scope != "global":
            return [None] * len(batches)
        seen: list[Tensor] = []

        def record(counts: Tensor) -> Tensor:
            seen.append(counts)
            return counts

        for batch in batches:
            self.forward(batch, scalars, record)
        rounds = len(batches) // parts
        totals = [torch.stack(seen[number::rounds]).sum(0) for number in range(rounds)]
        return [ReplayedCounts(totals[index % rounds]) for index in range(len(batches))]

    def update(self, trace: StepTrace, sharded: StepTrace, *, lr: float) -> None:
        """Update with the sharded run's gradients, norm and limit, and add the result to `trace`.

        Adam divides by the gradient's own size: fed with its own gradients, this model would turn rounding noise in
        elements near zero into visible differences. Fed with the same ones, any difference is the update's fault.
        """
        for name, parameter in self.trained.items():
            parameter.grad = sharded.gradients[name].to(self.device, parameter.dtype, copy=True)
        norm = torch.tensor(sharded.grad_norm, device=self.device)
        if sharded.max_norm:
            torch.nn.utils.clip_grads_with_norm_(self.trained.values(), sharded.max_norm, norm)
        if math.isfinite(trace.loss) and math.isfinite(sharded.grad_norm):
            self.optimizer.step(lr, loss=torch.tensor(trace.loss), grad_norm=norm)
            self.model.finish_update({name: value.to(self.device) for name, value in self.metrics.items()})
        self.optimizer.clear_gradients()
        trace.after = snapshot(self.parameters) | snapshot(buffers_of(self.model))
        trace.state = by_kind(self.optimizer.state())


def build_plain_optimizer(
    planned: OptimizerConfig, parameters: Mapping[str, Tensor], decayed: Collection[str], *, seed: int = 0
) -> Any:
    """The rule on whole parameters: ours written down once more, and one of a user's own as it is."""
    if type(planned) is AdamWConfig:
        return PlainAdamW(planned, parameters=parameters, decayed=decayed)
    random = {"seed": seed, "row_starts": {}} if planned.draws_random else {}
    return planned.build(parameters=parameters, decayed=decayed, **random)


@dataclass(frozen=True)
class ReplayedCounts:
    """Counts that were summed over ranks before."""

    total: Tensor

    def __call__(self, _counts: Tensor) -> Tensor:
        return self.total


def buffers_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """The persistent buffers: what training changes besides parameters."""
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in model.state_dict().items() if name not in parameters}


def _gradient(parameter: Tensor) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
