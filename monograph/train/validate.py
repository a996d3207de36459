"""Loss on held-out data: always the same samples, so that validations can be compared, also those of two runs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monograph.config.configurable import Configurable
from monograph.models.model import SEED
from monograph.train.config import ValidatorConfig
from monograph.train.data.loader import VALIDATION_SEED, DataLoader
from monograph.train.step import Step

_LARGEST_EXPONENT = 700.0
"""Of e, as a float; a loss above it has an infinite perplexity."""
_SCIENTIFIC_FROM = 1e6
"""Smallest perplexity that is shown with an exponent."""


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
            return f"validation loss {self.loss:.4f}, perplexity {format_perplexity(self.loss)}"
        sets = (f"{name} {loss:.4f} (perplexity {format_perplexity(loss)})" for name, loss in self.losses.items())
        return f"validation loss {self.loss:.4f}: {', '.join(sets)}"


class Validator(Configurable):
    """Runs the step's evaluation over the first samples of every set."""

    Config = ValidatorConfig

    def __init__(
        self, config: ValidatorConfig, *, step: Step, sets: Mapping[str, DataLoader], local_batch_size: int
    ) -> None:
        """Reads the samples of every set, once for all validations."""
        self.config = config
        self.step = step
        self.batches = {name: self._read(loader, local_batch_size) for name, loader in sets.items()}

    def is_due(self, step: int, last: int) -> bool:
        """Whether to validate after this step: at every interval, and at the end."""
        return self.config.interval > 0 and (step % self.config.interval == 0 or step == last)

    def run(self) -> Validation:
        """Mean loss over all valid tokens of the chosen samples, set by set."""
        return Validation({name: self._find_loss(batches) for name, batches in self.batches.items()})

    def _read(self, loader: DataLoader, local_batch_size: int) -> list[dict[str, Tensor]]:
        part, parts = self.step.data_part
        sizes = {"local_batch_size": local_batch_size, "part": part, "parts": parts}
        return [batch.tensors for batch in loader.first_batches(self.config.samples, **sizes)]

    def _find_loss(self, batches: Sequence[Mapping[str, Tensor]]) -> float:
        scalars = self.step.compute_scalars(batches)
        if SEED in scalars:
            scalars[SEED] = torch.full_like(scalars[SEED], VALIDATION_SEED)
        return float(self.step.total_loss(self.step.evaluate_all(batches, scalars)))


def find_perplexity(loss: float) -> float:
    """e to the mean loss of a token."""
    return math.exp(loss) if loss < _LARGEST_EXPONENT else (math.inf if loss == loss else math.nan)


def format_perplexity(loss: float) -> str:
    """Perplexity with two decimals; in scientific notation from a million."""
    perplexity = find_perplexity(loss)
    return f"{perplexity:,.2f}" if perplexity < _SCIENTIFIC_FROM else f"{perplexity:.3g}"
