"""Lanes of a stream: its files are dealt to several readers, so that a rank reads its own files and not all of them.

Lane k of K has the files k, k + K, k + 2 K, ... An update takes its samples from the lanes in turn, the first ones from
the first lane and so on, and data-parallel part p of P has the p-th run of them: about K / P lanes, or one that P / K
parts share. The order depends on the number of lanes and on the samples of an update, never on the number of parts.

Each lane is a stream of its own that begins again when its files have been read: where files differ in size, a smaller
lane comes round earlier.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from monograph.errors import DataError
from monograph.train.data.interleave import MODULUS, Interleaving
from monograph.train.data.interleaved_samples import InterleavedSamples
from monograph.train.data.stream_samples import StreamSamples

MOST_LANES = 16
"""Lanes that are chosen where nothing is asked for: one process alone has that many files open."""


class LaneSamples(InterleavedSamples):
    """The samples of a stream that is read in lanes."""

    def __init__(self, lanes: Sequence[StreamSamples], samples_per_update: float) -> None:
        stride = int(MODULUS / _as_fraction(samples_per_update))
        super().__init__(lanes, Interleaving([1.0] * len(lanes), seed=0, stride=stride))
        self.lanes = lanes

    def check_start(self) -> None:
        """Read the first row of the first lane: the others are opened by the ranks that read them."""
        self.lanes[0].check_start()

    def find_bookmark(self, sample: int) -> list[Any]:
        """Where each lane is to be read from for a sample; plain numbers."""
        return [lane.find_bookmark(self.order.count(sample, number)) for number, lane in enumerate(self.lanes)]

    def use_bookmark(self, saved: Sequence[Any]) -> None:
        """Know what `find_bookmark` of an earlier process found in the same lanes."""
        for lane, bookmark in zip(self.lanes, saved, strict=True):
            lane.use_bookmark(bookmark)


def choose_lanes(asked: int, files: int, samples_per_update: float) -> int:
    """Number of lanes for a stream: what is asked for, or (for 0) as many as fit, which take equally many samples."""
    samples = _as_fraction(samples_per_update)
    most = min(files, math.floor(samples))
    if not asked:
        return max([1, *(lanes for lanes in range(1, min(most, MOST_LANES) + 1) if _is_even(samples, lanes))])
    if asked > 1 and (asked > most or not _is_even(samples, asked)):
        per_update = f"{float(samples):g} samples of it in an update"
        fitting = [lanes for lanes in range(1, min(most, asked) + 1) if _is_even(samples, lanes)]
        raise DataError(
            f"dataloader.stream_lanes is {asked}",
            why=f"the stream has {files} files and there are {per_update}: every lane needs a file, and all of them an "
            "equal share of the update",
            do=f"--dataloader.stream_lanes {max(fitting, default=1)}, or 0 to have the number chosen",
        )
    return asked


def _is_even(samples: Fraction, lanes: int) -> bool:
    """Whether all lanes have equally many samples in the long run, up to 1 %.

    The places of samples in an update repeat after as many samples as the numerator says, and are even on the circle.
    """
    return samples.numerator % lanes == 0 or samples.numerator >= 100 * lanes


def _as_fraction(samples: float) -> Fraction:
    """Samples of an update: whole where they are meant to be, although shares of a mixture are rounded."""
    return Fraction(samples).limit_denominator(1 << 20)
