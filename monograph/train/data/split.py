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
    out, so a corpus of one document, or of copies of one document, is training data."""
    if not len(keys):
        return np.zeros(0, np.uint32)
    threshold = min(find_threshold(fraction), int(keys.max()))
    held_out = keys < np.uint64(threshold)
    members = np.flatnonzero(held_out if split == "validation" else ~held_out)
    return members.astype(np.uint32 if len(keys) < 1 << 32 else np.int64)
