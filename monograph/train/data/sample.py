"""A sample: what a model reads of one sequence, one image or one latent, as arrays by name."""

import numpy as np

from monograph.labels import IGNORED_LABEL

LABELS = "labels"
"""What a loss counts, where samples have it; IGNORED_LABEL is not counted."""
Sample = dict[str, np.ndarray]
"""Name -> array, without a batch dim. Every sample of a source has the same names, shapes and dtypes."""


def build_sample(stream: np.ndarray, ends: np.ndarray, seq_len: int) -> Sample:
    """Make a sample from `seq_len` tokens and the one after them, which is only a label: four int64 arrays.

    tokens      what is read
    labels      what comes next, or IGNORED_LABEL at the last token of a document
    positions   counted from the start of the document, or of the sample for a document that began in an earlier one
    documents   numbers the documents inside the sample from 0, so that attention can keep them apart

    `ends` are the places inside the cut just after a document's last token, ascending, in 1..seq_len. Borders come
    from here and never from looking for an eos id, which a text may contain. The token after the cut may be missing
    when a document ends exactly there, since its label is ignored anyway.
    """
    tokens = stream[:seq_len].astype(np.int64)
    labels = np.full(seq_len, IGNORED_LABEL, dtype=np.int64)
    following = stream[1 : seq_len + 1]
    labels[: len(following)] = following
    labels[ends - 1] = IGNORED_LABEL
    starts = np.concatenate(([0], ends))  # an end at the very end begins a document of no tokens
    counts = np.diff(starts, append=seq_len)
    documents = np.repeat(np.arange(len(starts), dtype=np.int64), counts)
    positions = np.arange(seq_len, dtype=np.int64) - np.repeat(starts, counts)
    return {"tokens": tokens, "labels": labels, "positions": positions, "documents": documents}
