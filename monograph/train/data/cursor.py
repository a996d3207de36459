"""The position in the data: one pair of numbers for the whole run, the same for any number of devices."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from monograph.errors import DataError


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """The next sample to be seen. An update that starts here uses the samples from here on, however many devices share
    them, so a run can be resumed on another number of devices."""

    epoch: int = 0
    """Whole passes over the data that lie behind."""
    sample: int = 0
    """Samples of this epoch that lie behind."""

    def advance(self, count: int, samples_per_epoch: int | None) -> "Cursor":
        """The position `count` samples later. A stream has no known length (None) and stays in its one epoch."""
        if samples_per_epoch is None:
            return Cursor(self.epoch, self.sample + count)
        epochs, sample = divmod(self.sample + count, samples_per_epoch)
        return Cursor(self.epoch + epochs, sample)

    def count_samples(self, samples_per_epoch: int | None) -> int:
        """All samples that lie behind, of all epochs."""
        return self.sample if samples_per_epoch is None else self.epoch * samples_per_epoch + self.sample

    def check(self, samples_per_epoch: int | None) -> None:
        """Refuse a position that this data does not have: it was counted in other data."""
        if self.epoch < 0 or self.sample < 0 or (samples_per_epoch is not None and self.sample >= samples_per_epoch):
            has = "a stream" if samples_per_epoch is None else f"data with {samples_per_epoch} samples per epoch"
            raise DataError(
                f"the data position (epoch {self.epoch}, sample {self.sample}) lies outside {has}",
                why="the position was counted in other data, or with another sequence length or split",
                do="resume with the dataset, tokenizer and training.seq_len of the saved run, or start a new run",
            )

    def to_json(self) -> dict[str, int]:
        """Plain numbers for a checkpoint."""
        return {"epoch": self.epoch, "sample": self.sample}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Self:
        """The cursor that `to_json` wrote."""
        values = [saved.get(name) for name in ("epoch", "sample")]
        if set(saved) != {"epoch", "sample"} or not all(type(value) is int and value >= 0 for value in values):
            raise DataError(
                f"{dict(saved)!r} is not a position in the data",
                why="a position is two counts, epoch and sample",
                do="load another checkpoint",
            )
        return cls(**saved)
