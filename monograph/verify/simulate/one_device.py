"""The same update on one device in fp64: plain modules and autograd, with nothing of the parallel code in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from monograph.models.linear import Embedding
from monograph.models.model import SEED, find_scalars
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.data.cursor import Cursor
from monograph.verify.reference import Reference, buffers_of
from monograph.verify.simulate.precision import WIDE, in_fp64
from monograph.verify.simulate.start import randomize

Tensors = Mapping[str, Tensor]


@dataclass
class Expected:
    """What an update yields on one device."""

    loss: float = 0.0
    gradients: dict[str, Tensor] = field(default_factory=dict)
    """By the first name of each parameter."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Sums over all micro-batches."""
    scalars: dict[str, Tensor] = field(default_factory=dict)


class OneDevice:
    """A model of plain modules with random weights, and what it computes."""

    def __init__(self, config: TrainerConfig, *, compute_dtype: torch.dtype, seed: int = 0) -> None:
        self.config = config
        self.reference = Reference(config, torch.device("cpu"))
        self.model = self.reference.model
        randomize(self.model, seed)
        for module in self.model.modules():
            if isinstance(module, Embedding) and module.scales:
                # a captured step holds the scale as its own dtype rounds it, which is part of the model
                module.scales = {**module.scales, WIDE: module.scales[compute_dtype]}

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The weights by name."""
        return {name: value.detach() for name, value in self.model.named_parameters()}

    @property
    def buffers(self) -> dict[str, Tensor]:
        """The buffers by name: tables and biases."""
        return dict(self.model.named_buffers())

    @property
    def kept_names(self) -> tuple[str, ...]:
        """The buffers that training changes."""
        return tuple(name for name, value in buffers_of(self.model).items() if value.is_floating_point())

    def finish(self, metrics: Tensors) -> dict[str, Tensor]:
        """The buffers that training changes, as they are after an update with these metrics; nothing is changed."""
        kept = buffers_of(self.model)
        before = {name: kept[name].clone() for name in self.kept_names}
        with torch.no_grad(), in_fp64():
            self.model.finish_update(metrics)
            after = {name: kept[name].clone() for name in self.kept_names}
            for name, value in before.items():
                kept[name].copy_(value)
        return after

    def compute_scalars(self, batches: Sequence[Tensors]) -> dict[str, Tensor]:
        """The counts of an update that reads these micro-batches, and the seed."""
        counts = [self.model.count_normalizers(batch) for batch in batches]
        known = {name: sum(count[name] for count in counts) for name in self.model.normalizers}
        known[SEED] = self.config.debug.seed
        return {name: torch.tensor(known[name]) for name in find_scalars(self.model)}

    @torch.no_grad()
    def evaluate(self, drawn: Sequence[Tensors], dealt: Sequence[int], scalars: Tensors) -> float:
        """The loss of one round without gradients."""
        with in_fp64():
            batches = [Batch(dict(batch), Cursor()) for batch in drawn]
            losses = [float(self.reference.evaluate([batch], scalars)) for batch in batches]
        return sum(losses[number] for number in dealt)

    def run(self, drawn: Sequence[Tensors], deals: Sequence[Sequence[int]]) -> list[Expected]:
        """Loss, metrics and gradients of each round of an update; in round r, data-parallel rank i reads
        `drawn[deals[r][i]]`.

        A micro-batch that several ranks read in a round is computed once, and counted as often as it is read.
        """
        parts = len(deals[0])
        read = [dealt[part] for part in range(parts) for dealt in deals]
        scalars = self.compute_scalars([drawn[number] for number in read])
        batches = [Batch(dict(drawn[number]), Cursor()) for number in read]
        with in_fp64():
            reductions = self.reference.count_globally(batches, scalars, parts)
        return [
            self._run_round(dealt, scalars, batches[number :: len(deals)], reductions[number :: len(deals)])
            for number, dealt in enumerate(deals)
        ]

    def _run_round(
        self, dealt: Sequence[int], scalars: dict[str, Tensor], batches: Sequence[Batch], reductions: Sequence[Any]
    ) -> Expected:
        expected = Expected(scalars=scalars)
        with in_fp64():
            for number in dict.fromkeys(dealt):
                times, first = list(dealt).count(number), list(dealt).index(number)
                output = self.reference.forward(batches[first], scalars, reductions[first])
                (output.objective * times).backward()
                expected.loss += output.loss.item() * times
                for name, value in output.metrics.items():
                    share = value.detach().double() * times
                    expected.metrics[name] = expected.metrics[name] + share if name in expected.metrics else share
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                expected.gradients[name] = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                parameter.grad = None
        return expected
