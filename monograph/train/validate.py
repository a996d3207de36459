"""Loss on held-out data: always the same micro-batches, so that two validations can be compared."""

from monograph.config.configurable import Configurable
from monograph.train.config import ValidatorConfig
from monograph.train.data.cursor import Cursor
from monograph.train.data.loader import DataLoader
from monograph.train.step import Step


class Validator(Configurable):
    """Runs the step's evaluation over the first micro-batches of the held-out split."""

    Config = ValidatorConfig

    def __init__(self, config: ValidatorConfig, *, step: Step, loader: DataLoader, local_batch_size: int) -> None:
        self.config = config
        self.step = step
        self.loader = loader
        self.local_batch_size = local_batch_size

    def is_due(self, step: int, last: int) -> bool:
        """Whether to validate after this step: at every interval, and at the end."""
        return self.config.interval > 0 and (step % self.config.interval == 0 or step == last)

    def loss(self) -> float:
        """Mean loss over all valid tokens of the chosen micro-batches."""
        part, parts = self.step.data_part
        batches = self.loader.batches(
            Cursor(epoch=0, sample=0),
            local_batch_size=self.local_batch_size,
            global_batch_size=self.local_batch_size * parts,
            part=part,
            parts=parts,
        )
        with batches:
            chosen = [batch for _, batch in zip(range(self.config.steps), batches, strict=False)]
        tensors = [batch.tensors for batch in chosen]
        return float(self.step.total_loss(self.step.evaluate_all(tensors, self.step.compute_scalars(tensors))))
