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
from monograph.train.update import add_gradients, apply_update
from monograph.verify.reference import buffers_of
from monograph.verify.trace import LocalTrace, gradients_of, snapshot
from monograph.verify.watch import ModuleRecording, recorded, traced


class TracedRun:
    """The trainer's updates, one at a time."""

    def __init__(self, config: TrainerConfig, groups: Groups, *, is_recorded: bool) -> None:
        self.config = config
        self.is_recorded = is_recorded
        """Whether what modules put out is recorded, too."""
        self.step: MeshStep = build_step(config, groups, probe=traced if is_recorded else None)
        self.optimizer = build_optimizer(config.plan_optimizer(), self.step)
        self.scheduler = config.lr_scheduler.build(peak=config.optimizer.lr, steps=config.training.steps)

    def update(self, number: int, batches: Sequence[Batch]) -> LocalTrace:
        """Update number `number` from this rank's micro-batches, and what it left on this rank."""
        step = self.step
        before = snapshot(step.parameters)
        is_module_by_module = self.is_recorded and not isinstance(step, GraphStep)
        with recorded(step.model, is_open=is_module_by_module) as recording:
            loss = _add_gradients(step, batches, recording, number)
        if isinstance(step, GraphStep):
            recording.add_outputs(step.outputs.take_probed())
        gradients = snapshot(gradients_of(step))
        lr, max_norm = self.scheduler.lr(number), self.config.training.max_norm
        updated = apply_update(step, self.optimizer, loss=loss, lr=lr, max_norm=max_norm)
        return LocalTrace(
            loss=loss.item(),
            grad_norm=updated.grad_norm.item(),
            outputs=recording.outputs,
            output_gradients=recording.gradients,
            choices=recording.choices,
            before=before,
            gradients=gradients,
            after=snapshot(step.parameters),
            buffers=snapshot(buffers_of(step.model)),
            metrics={name: value.double().cpu() for name, value in updated.metrics.items() if name != BUBBLE},
        )


def _add_gradients(step: MeshStep, batches: Sequence[Batch], recording: ModuleRecording, number: int) -> Tensor:
    """The trainer's own, with a note on where the step was when it failed: a collective's error does not say."""
    try:
        return add_gradients(step, batches)
    except Exception as error:
        error.add_note(f"verify: step {number} failed {recording.where()}".rstrip())
        raise
