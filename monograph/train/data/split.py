"""Which documents are trained on and which are held out: decided by a document's text, so no text is ever in both."""

from typing import Literal

import numpy as np

Split = Literal["train", "validation"]


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
