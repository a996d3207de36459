"""The loss by source of a mixture: that of an update's own samples, before its weights change."""

from collections.abc import Sequence

import torch
from torch import Tensor

from monograph.labels import IGNORED_LABEL
from monograph.parallel.groups import Groups
from monograph.train.data.batch import Batch
from monograph.train.data.mixture import SOURCE, MixedSamples
from monograph.train.data.sample import LABELS
from monograph.train.step import Step

Tensors = dict[str, Tensor]


class SourceLosses:
    """Measures, every so many steps, the loss of each source among the samples of an update.

    The samples of each source are put together into micro-batches of their own, so that all sources together take about
    one forward of the update. It is an evaluation, the same numbers in every mode and on every mesh: without gradients
    and without dropout. Data without labels has no such loss.
    """

    def __init__(self, mixture: MixedSamples | None, *, interval: int, step: Step, groups: Groups) -> None:
        self.names = mixture.names if mixture is not None else ()
        self.interval, self.step, self.groups = interval, step, groups

    def is_due(self, number: int) -> bool:
        """Whether to measure at this step: the first one, and at every interval."""
        return bool(self.names) and self.interval > 0 and (number == 1 or number % self.interval == 0)

    def measure(self, batches: Sequence[Batch]) -> dict[str, float]:
        """The loss by source; one that has no sample in this update is left out."""
        if not all(LABELS in batch.tensors for batch in batches):
            return {}
        together = {name: torch.cat([batch.tensors[name] for batch in batches]) for name in batches[0].tensors}
        size = len(batches[0].tensors[LABELS])
        chosen = [(together[SOURCE] == number).nonzero().flatten() for number in range(len(self.names))]
        counts = [(len(rows), int((together[LABELS][rows] != IGNORED_LABEL).sum())) for rows in chosen]
        everywhere = self.groups.all_gather_object(counts)
        found = {}
        for number, (name, rows) in enumerate(zip(self.names, chosen, strict=True)):
            samples, labels = zip(*(each[number] for each in everywhere), strict=True)
            if sum(labels):
                grouped = group_rows(together, rows, size=size, count=-(-max(samples) // size))
                share = self.step.evaluate_all(grouped, self.step.compute_scalars(grouped))
                found[name] = float(self.step.total_loss(share))
        return found


def group_rows(together: Tensors, rows: Tensor, *, size: int, count: int) -> list[Tensors]:
    """These rows as `count` micro-batches, as many as the rank with most needs; what is missing has no labels."""
    missing = size * count - len(rows)
    padded = torch.cat([rows, rows.new_zeros(missing)])
    taken = {name: value[padded] for name, value in together.items()}
    taken[LABELS][len(rows) :] = IGNORED_LABEL
    starts = range(0, size * count, size)
    return [{name: value[first : first + size] for name, value in taken.items()} for first in starts]
