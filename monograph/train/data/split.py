"""Which documents are trained on and which are held out: decided by a document's text, so no text is ever in both."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from monograph.train.data.corpus import CHUNK_DOCUMENTS

Split = Literal["train", "validation"]


@dataclass(frozen=True, slots=True)
class HeldOutTexts:
    """The texts that are validation, for all sources of a run: whole texts by their keys, and the ends of some.

    A share of all keys says most of it, also for texts that are read later; the arrays are what small sources need.
    """

    fraction: float
    """Texts with a key below this share of all keys are held out."""
    added: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Keys, ascending, that are held out besides."""
    kept: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Keys, ascending, that are trained on although they are below the share."""
    cuts: Mapping[int, int] = field(default_factory=dict)
    """Key of a text -> tokens at its end that are held out; no known source has another copy of it."""

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Whether each key is held out."""
        found = keys < np.uint64(find_threshold(self.fraction))
        found &= ~is_in(keys, self.kept)
        found |= is_in(keys, self.added)
        return found

    def has(self, key: int, split: Split) -> bool:
        """Whether a text of a stream belongs to a split. One whose end is held out belongs to none."""
        if key in self.cuts:
            return False
        one = np.array([key], np.uint64)
        held_out = bool(is_in(one, self.added)[0]) or (is_held_out(key, self.fraction) and not is_in(one, self.kept)[0])
        return held_out == (split == "validation")

    def describe(self) -> str:
        """What decides the split besides the share; empty when nothing does."""
        facts = (self.added.tolist(), self.kept.tolist(), sorted(self.cuts.items()))
        return repr(facts) if any(facts) else ""


def is_in(keys: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Whether each key is one of some others, which are sorted; in chunks, so that this needs little memory."""
    found = np.zeros(len(keys), dtype=bool)
    for start in range(0, len(keys), CHUNK_DOCUMENTS) if len(ascending) else ():
        chunk = keys[start : start + CHUNK_DOCUMENTS]
        places = np.minimum(np.searchsorted(ascending, chunk), len(ascending) - 1)
        found[start : start + CHUNK_DOCUMENTS] = ascending[places] == chunk
    return found


def find_threshold(fraction: float) -> int:
    """Keys below this are held out."""
    return int(fraction * (1 << 64))


def is_held_out(key: int, fraction: float) -> bool:
    """Whether one document is held out, when the others are not known (a stream)."""
    return key < find_threshold(fraction)


def find_members(keys: np.ndarray, fraction: float, split: Split) -> np.ndarray:
    """The documents of one split, ascending. Something is always left to train on: the largest key is never held
    out, so a corpus of one document, or of copies of one document, is training data. Of several texts, at least the
    one with the smallest key is held out."""
    if not len(keys):
        return np.zeros(0, np.uint32)
    return select(find_held_out(keys, fraction), split)


def find_held_out(keys: np.ndarray, fraction: float) -> np.ndarray:
    """Whether each document is held out."""
    smallest, largest = int(keys.min()), int(keys.max())
    threshold = min(find_threshold(fraction), largest)
    if fraction > 0 and threshold <= smallest < largest:
        threshold = smallest + 1
    return keys < np.uint64(threshold)


def select(held_out: np.ndarray, split: Split) -> np.ndarray:
    """The numbers of the documents of one split, ascending."""
    members = np.flatnonzero(held_out if split == "validation" else ~held_out)
    return members.astype(np.uint32 if len(held_out) < 1 << 32 else np.int64)
