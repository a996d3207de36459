"""Where the outputs of a program go: the last loss, metrics and gradients added up over micro-batches."""

from torch import Tensor

from monograph.execute.base import MetricSums
from monograph.execute.gradients import Gradients
from monograph.graph.signature import OutputKind, OutputSpec


class StepOutputBuffers:
    """Takes every output the moment it is computed."""

    def __init__(self, gradients: Gradients, metrics: MetricSums) -> None:
        self.gradients, self.metrics = gradients, metrics
        self.loss: Tensor | None = None
        self.recorded: dict[str, list[Tensor]] = {}
        """Recorded values by name, one entry for every micro-batch, in the host's memory."""

    def take(self, spec: OutputSpec, value: Tensor) -> None:
        """One output of a training step."""
        if spec.kind is OutputKind.METRIC:
            self.metrics.add(spec.name, value)
        elif spec.kind is OutputKind.GRADIENT:
            self.gradients.add(spec.name, value)
        elif spec.kind is OutputKind.RECORDED:
            self.recorded.setdefault(spec.name, []).append(value.to("cpu", copy=True))
        else:
            self.loss = value

    def take_loss(self, spec: OutputSpec, value: Tensor) -> None:
        """One output of an evaluation: metrics are not counted."""
        if spec.kind is OutputKind.LOSS:
            self.loss = value

    def take_recorded(self) -> dict[str, list[Tensor]]:
        """What was recorded since the last call."""
        found, self.recorded = self.recorded, {}
        return found

    def copy_loss(self) -> Tensor:
        """The last loss, in memory that the next call does not overwrite."""
        assert self.loss is not None, "nothing was run"
        return self.loss.clone()
