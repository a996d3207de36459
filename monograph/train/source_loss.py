"""The training loss of an update by source of a mixture: its own samples, before its weights change."""

from collections.abc import Sequence

import torch
from torch import Tensor

from monograph.labels import IGNORED_LABEL
from monograph.parallel.groups import Groups
from monograph.train.data.batch import Batch
from monograph.train.data.mixture import SOURCE, MixedSamples
from monograph.train.step import Step


class SourceLosses:
    """Measures, every so many steps, the loss of each source among the samples of an update.

    For each source the labels of all others are ignored and the update's micro-batches are evaluated once, without
    gradients: the same numbers in every mode and on every mesh. Data without labels has no such loss.
    """

    def __init__(self, mixture: MixedSamples | None, *, interval: int, step: Step, groups: Groups) -> None:
        self.names = mixture.names if mixture is not None else ()
        self.interval, self.step, self.groups = interval, step, groups

    def is_due(self, number: int) -> bool:
        """Whether to measure at this step: the first one, and at every interval."""
        return bool(self.names) and self.interval > 0 and (number == 1 or number % self.interval == 0)

    def measure(self, batches: Sequence[Batch]) -> dict[str, float]:
        """The loss by source; one that has no sample in this update is left out."""
        if not all("labels" in batch.tensors for batch in batches):
            return {}
        masked = [[_mask(batch.tensors, number) for batch in batches] for number in range(len(self.names))]
        counts = [int(sum((each["labels"] != IGNORED_LABEL).sum() for each in one)) for one in masked]
        totals = [sum(each) for each in zip(*self.groups.all_gather_object(counts), strict=True)]
        found = {}
        for name, tensors, total in zip(self.names, masked, totals, strict=True):
            if total:
                share = self.step.evaluate_all(tensors, self.step.compute_scalars(tensors))
                found[name] = float(self.step.total_loss(share))
        return found


def _mask(tensors: dict[str, Tensor], source: int) -> dict[str, Tensor]:
    """The batch with the labels of one source alone."""
    labels, sources = tensors["labels"], tensors[SOURCE]
    is_other = (sources != source).view(-1, *[1] * (labels.dim() - 1))
    return {**tensors, "labels": torch.where(is_other, IGNORED_LABEL, labels)}
