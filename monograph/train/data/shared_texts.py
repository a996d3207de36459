"""Texts of a validation set of its own that are trained on too: nothing is taken out of either, so it is said."""

from collections.abc import Sequence

import numpy as np

from monograph.log import get_log
from monograph.train.data.corpus import CHUNK_DOCUMENTS, TokenCorpus
from monograph.train.data.split import is_in

log = get_log(__name__)


def warn_of_shared(name: str, validation: Sequence[TokenCorpus], training: Sequence[TokenCorpus]) -> None:
    """Log how many documents of a validation set have a copy in the training data, of what is known of both."""
    total = sum(corpus.document_count for corpus in validation)
    shared = count_shared(validation, training)
    if shared:
        log.warning(
            "data: %s: %d of its %d documents are in the training data too, so its loss is too low", name, shared, total
        )


def count_shared(validation: Sequence[TokenCorpus], training: Sequence[TokenCorpus]) -> int:
    """Documents of one side with a copy on the other; the training data is looked through in chunks."""
    if not validation or not training:
        return 0
    keys, copies = np.unique(np.concatenate([corpus.keys for corpus in validation]), return_counts=True)
    found = np.zeros(len(keys), dtype=bool)
    for corpus in training:
        for start in range(0, corpus.document_count, CHUNK_DOCUMENTS):
            chunk = corpus.keys[start : start + CHUNK_DOCUMENTS]
            found[np.searchsorted(keys, chunk[is_in(chunk, keys)])] = True
    return int(copies[found].sum())
