"""Which part of a corpus is held out, also of a small one: whole documents, or the end of one.

Many documents are held out by their texts alone (split.py). A few may not do: one file is one document, and the one of
thirty whose key is the smallest may be shorter than a sequence, or most of the text. Then more documents are held out,
or the longest is cut in two; when there is not enough for both splits, all of it is training data.
"""

import hashlib
import math
from dataclasses import replace

import numpy as np

from monograph.train.data.corpus import TokenCorpus
from monograph.train.data.permutation import find_seed
from monograph.train.data.split import find_held_out


def hold_out(corpus: TokenCorpus, fraction: float, seq_len: int) -> tuple[TokenCorpus, np.ndarray]:
    """Whether each document is held out, and the corpus whose documents are meant: one may have been cut in two."""
    held_out = find_held_out(corpus.keys, fraction)
    if fraction <= 0 or _is_enough(corpus, held_out, seq_len):
        return corpus, held_out
    more = _hold_out_more(corpus, seq_len)
    if more is not None:
        return corpus, more
    return _cut_longest(corpus, fraction, seq_len)


def _is_enough(corpus: TokenCorpus, held_out: np.ndarray, seq_len: int) -> bool:
    """Whether a split leaves a sequence for validation, and at least half of the tokens for training."""
    tokens = corpus.count_tokens(np.flatnonzero(held_out))
    return seq_len <= tokens <= corpus.token_count // 2


def _hold_out_more(corpus: TokenCorpus, seq_len: int) -> np.ndarray | None:
    """Documents in the order of their keys until they fill a sequence; None when too little would be left."""
    order = np.argsort(corpus.keys, kind="stable")
    lengths = corpus.find_lengths(order)
    count = int(np.searchsorted(np.cumsum(lengths), seq_len)) + 1
    if count >= len(order):
        return None
    held_out = corpus.keys <= corpus.keys[order[count - 1]]  # copies of a text stay together
    return held_out if _is_enough(corpus, held_out, seq_len) else None


def _cut_longest(corpus: TokenCorpus, fraction: float, seq_len: int) -> tuple[TokenCorpus, np.ndarray]:
    """The end of the longest document is held out; nothing is when that leaves less than a sequence to train on."""
    lengths = corpus.find_lengths(np.arange(corpus.document_count))
    longest = int(lengths.argmax())
    tokens = max(math.ceil(fraction * corpus.token_count), seq_len)
    if int(lengths[longest]) - tokens < seq_len:
        return corpus, np.zeros(corpus.document_count, dtype=bool)
    end = int(corpus.offsets[longest + 1])
    key = find_seed("cut", int(corpus.keys[longest]), tokens)
    cut = replace(
        corpus,
        offsets=np.insert(corpus.offsets, longest + 1, end - tokens),
        keys=np.insert(corpus.keys, longest + 1, np.uint64(key)),
        content_hash=hashlib.sha256(f"{corpus.content_hash} {longest} {tokens}".encode()).hexdigest(),
    )
    held_out = np.zeros(cut.document_count, dtype=bool)
    held_out[longest + 1] = True
    return cut, held_out
