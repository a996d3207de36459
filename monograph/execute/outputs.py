"""Where the outputs of a program go: the last loss, metrics and gradients added up over micro-batches."""

from torch import Tensor

from monograph.execute.base import MetricSums
from monograph.execute.gradients import Gradients
from monograph.graph.signature import OutputKind, OutputSpec


class LossBuffer:
    """Takes the loss of an evaluation; its metrics are not counted."""

    def __init__(self) -> None:
        self.gradients = Gradients({})
        self.loss: Tensor | None = None

    def take(self, spec: OutputSpec, value: Tensor) -> None:
        """One output, the moment it is computed."""
        if spec.kind is OutputKind.LOSS:
            self.loss = value

    def copy_loss(self) -> Tensor:
        """The last loss, in memory that the next call does not overwrite."""
        assert self.loss is not None, "nothing was run"
        return self.loss.clone()


class StepOutputBuffers(LossBuffer):
    """Takes every output of a training step."""

    def __init__(self, gradients: Gradients, metrics: MetricSums) -> None:
        super().__init__()
        self.gradients, self.metrics = gradients, metrics
        self.probed: dict[str, list[Tensor]] = {}
        """Recorded values by name, one entry for every micro-batch, in the host's memory."""

    def take(self, spec: OutputSpec, value: Tensor) -> None:
        if spec.kind is OutputKind.METRIC:
            self.metrics.add(spec.name, value)
        elif spec.kind is OutputKind.GRADIENT:
            self.gradients.add(spec.name, value)
        elif spec.kind is OutputKind.PROBED:
            self.probed.setdefault(spec.name, []).append(value.to("cpu", copy=True))
        else:
            self.loss = value

    def take_probed(self) -> dict[str, list[Tensor]]:
        """What was recorded since the last call."""
        found, self.probed = self.probed, {}
        return found
