"""A step and its optimizer, whose updates are recorded so that they can be compared."""

from collections.abc import Sequence

from torch import Tensor

from monograph.execute.base import MeshStep
from monograph.execute.graph_step import GraphStep
from monograph.parallel.groups import Groups
from monograph.parallel.pipeline.schedule import BUBBLE
from monograph.run import build_step
from monograph.train.build_optimizer import build_optimizer
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.start import fill_tensors
from monograph.train.state import collect_tensors
from monograph.train.update import add_gradients, apply_update
from monograph.verify.reference import EVALUATION, buffers_of
from monograph.verify.trace import LocalTrace, by_kind, gradients_of, snapshot
from monograph.verify.watch import ModuleRecording, recorded, traced


class TracedRun:
    """The trainer's updates, one at a time."""

    def __init__(self, config: TrainerConfig, groups: Groups, *, is_recorded: bool) -> None:
        self.config = config
        self.is_recorded = is_recorded
        """Whether what modules put out is recorded, too."""
        self.step: MeshStep = build_step(config, groups, probe=traced if is_recorded else None)
        self.optimizer = build_optimizer(config.plan_optimizer(), self.step)
        fill_tensors(config, collect_tensors(self.step, self.optimizer), groups)
        self.lr = config.optimizer.lr
        """Of every update: the peak, because the first rates of a warmup are below what fp32 weights can show."""
        self.last_norm = 0.0

    def update(self, number: int, batches: Sequence[Batch]) -> LocalTrace:
        """Update number `number` from this rank's micro-batches, and what it left on this rank."""
        step = self.step
        before, buffers_before = snapshot(step.parameters), snapshot(buffers_of(step.model))
        is_module_by_module = self.is_recorded and not isinstance(step, GraphStep)
        with recorded(step.model, is_open=is_module_by_module) as recording:
            loss = _add_gradients(step, batches, recording, number)
        if isinstance(step, GraphStep):
            recording.add_outputs(step.outputs.take_probed())
        gradients = snapshot(gradients_of(step))
        evaluated = self.evaluate(batches)
        max_norm = self.find_limit()
        updated = apply_update(step, self.optimizer, loss=loss, lr=self.lr, max_norm=max_norm)
        self.last_norm = updated.grad_norm.item()
        metrics = {name: value.double().cpu() for name, value in updated.metrics.items() if name != BUBBLE}
        return LocalTrace(
            loss=loss.item(),
            grad_norm=self.last_norm,
            outputs=recording.outputs,
            output_gradients=recording.gradients,
            choices=recording.choices,
            before=before,
            gradients=gradients,
            after=snapshot(step.parameters),
            state=by_kind(self.optimizer.state()),
            buffers_before=buffers_before,
            buffers_after=snapshot(buffers_of(step.model)),
            max_norm=max_norm,
            metrics=metrics | evaluated,
        )

    def find_limit(self) -> float:
        """The norm to clip at: the run's own in the first update, then one that gradients exceed, so that it shows."""
        own = self.config.training.max_norm
        return min(own, self.last_norm / 2) if self.last_norm > 0 else own

    def evaluate(self, batches: Sequence[Batch]) -> dict[str, Tensor]:
        """The loss of the same micro-batches without gradients, in runs that evaluate.

        Between gradients and update, where training evaluates the sources of a mixture: what an evaluation
        overwrites shows in the update.
        """
        if not self.config.needs_evaluation():
            return {}
        tensors = [batch.tensors for batch in batches]
        share = self.step.evaluate_all(tensors, self.step.compute_scalars(tensors))
        return {EVALUATION: self.step.total_loss(share).double().cpu()}


def _add_gradients(step: MeshStep, batches: Sequence[Batch], recording: ModuleRecording, number: int) -> Tensor:
    """The trainer's own, with a note on where the step was when it failed: a collective's error does not say."""
    try:
        return add_gradients(step, batches)
    except Exception as error:
        error.add_note(f"verify: step {number} failed {recording.where()}".rstrip())
        raise
