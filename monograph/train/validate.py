"""Loss on held-out data: always the same micro-batches, so that two validations can be compared."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from monograph.config.configurable import Configurable
from monograph.train.config import ValidatorConfig
from monograph.train.data.cursor import Cursor
from monograph.train.data.loader import DataLoader
from monograph.train.step import Step

_LARGEST_EXPONENT = 700.0
"""Of e, as a float; a loss above it has an infinite perplexity."""


@dataclass(frozen=True)
class Validation:
    """The losses of one validation, by set."""

    losses: Mapping[str, float]

    @property
    def loss(self) -> float:
        """The mean of the sets' losses; with one set, its loss."""
        return sum(self.losses.values()) / len(self.losses)

    def to_record(self) -> dict[str, object]:
        """The entries of a line of metrics.jsonl."""
        sets = {name: {"loss": loss, "perplexity": find_perplexity(loss)} for name, loss in self.losses.items()}
        return {"validation_loss": self.loss, "validation": sets}

    def describe(self) -> str:
        """One line."""
        if len(self.losses) == 1:
            return f"validation loss {self.loss:.4f}, perplexity {find_perplexity(self.loss):.4g}"
        sets = (f"{name} {loss:.4f} (perplexity {find_perplexity(loss):.4g})" for name, loss in self.losses.items())
        return f"validation loss {self.loss:.4f}: {', '.join(sets)}"


class Validator(Configurable):
    """Runs the step's evaluation over the first micro-batches of every set."""

    Config = ValidatorConfig

    def __init__(
        self, config: ValidatorConfig, *, step: Step, sets: Mapping[str, DataLoader], local_batch_size: int
    ) -> None:
        self.config = config
        self.step = step
        self.sets = sets
        self.local_batch_size = local_batch_size

    def is_due(self, step: int, last: int) -> bool:
        """Whether to validate after this step: at every interval, and at the end."""
        return self.config.interval > 0 and (step % self.config.interval == 0 or step == last)

    def run(self) -> Validation:
        """Mean loss over all valid tokens of the chosen micro-batches, set by set."""
        return Validation({name: self._find_loss(loader) for name, loader in self.sets.items()})

    def _find_loss(self, loader: DataLoader) -> float:
        part, parts = self.step.data_part
        batches = loader.batches(
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


def find_perplexity(loss: float) -> float:
    """e to the mean loss of a token."""
    return math.exp(loss) if loss < _LARGEST_EXPONENT else (math.inf if loss == loss else math.nan)
