"""Which texts are held out of all sources together, also of small ones: whole documents, or the end of one.

Many documents are held out by their texts alone (split.py). A few may not do: one file is one document, and the one of
thirty whose key is the smallest may be shorter than a sequence, or most of the text. Then more documents are held out,
or the longest is cut in two; when there is not enough for both splits, all of it is training data.

What is decided for one source holds for all, since they may have texts in common. The smallest source has the least
choice and is asked first. A text of which there are copies is never cut: the others would hold its end.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from monograph.train.data.corpus import CHUNK_DOCUMENTS, TokenCorpus
from monograph.train.data.permutation import find_seed
from monograph.train.data.split import HeldOutTexts, find_held_out, is_in


def plan_held_out(corpora: Sequence[TokenCorpus], fraction: float, seq_len: int) -> HeldOutTexts:
    """The texts that are held out of these corpora, and of everything that is read beside them."""
    plan = HeldOutTexts(fraction)
    if fraction <= 0:
        return plan
    settled: list[TokenCorpus] = []
    for corpus in sorted(corpora, key=lambda corpus: corpus.document_count):
        for held_out, cuts in _propose(corpus, plan, corpora, seq_len):
            chosen = _include(plan, corpus.keys, held_out, cuts)
            if chosen is plan or all(_is_harmless(plan, chosen, other, seq_len) for other in settled):
                plan = chosen
                break
        settled.append(corpus)
    return plan


def split_corpus(corpus: TokenCorpus, plan: HeldOutTexts) -> tuple[TokenCorpus, np.ndarray]:
    """Whether each document is held out, and the corpus whose documents are meant: one may have been cut in two."""
    held_out = plan.find(corpus.keys)
    for key, tokens in plan.cuts.items():
        (places,) = np.nonzero(corpus.keys == np.uint64(key))
        if len(places):
            corpus, held_out = _cut_end(corpus, held_out, int(places[0]), tokens)
    return corpus, held_out


def _propose(
    corpus: TokenCorpus, plan: HeldOutTexts, corpora: Sequence[TokenCorpus], seq_len: int
) -> Iterator[tuple[np.ndarray, Mapping[int, int]]]:
    """Ways to split a corpus, the best first: which documents are held out whole, and what is cut. What was decided
    for other corpora stays."""
    added, kept = is_in(corpus.keys, plan.added), is_in(corpus.keys, plan.kept)
    by_share = (find_held_out(corpus.keys, plan.fraction) | added) & ~kept
    if _is_enough(corpus, by_share, seq_len):
        yield by_share, {}
    more = _hold_out_more(corpus, added, kept, seq_len)
    if more is not None:
        yield more, {}
    held_tokens = corpus.count_tokens(np.flatnonzero(added))
    if not seq_len <= held_tokens <= corpus.token_count - seq_len:
        cut = _find_cut(corpus, added, plan.fraction, corpora, seq_len)
        if cut:
            yield added, cut
    yield added, {}


def _include(plan: HeldOutTexts, keys: np.ndarray, held_out: np.ndarray, cuts: Mapping[int, int]) -> HeldOutTexts:
    """The plan by which exactly these documents of a corpus are held out; the same one when it says so already."""
    before = plan.find(keys)
    added, kept = keys[held_out & ~before], keys[before & ~held_out]
    if not (len(added) or len(kept) or cuts):
        return plan
    uncut = np.array(list(cuts), np.uint64)
    return replace(
        plan,
        added=np.union1d(plan.added, added),
        kept=np.union1d(plan.kept, np.concatenate((kept, uncut))),
        cuts={**plan.cuts, **cuts},
    )


def _is_harmless(before: HeldOutTexts, after: HeldOutTexts, corpus: TokenCorpus, seq_len: int) -> bool:
    """Whether both splits of a corpus still fill a sequence, if they did."""
    sides = zip(_count_sides(before, corpus), _count_sides(after, corpus), strict=True)
    return all(new >= seq_len or old < seq_len for old, new in sides)


def _count_sides(plan: HeldOutTexts, corpus: TokenCorpus) -> tuple[int, int]:
    """Tokens that are trained on and that are held out."""
    corpus, held_out = split_corpus(corpus, plan)
    held_tokens = corpus.count_tokens(np.flatnonzero(held_out))
    return corpus.token_count - held_tokens, held_tokens


def _is_enough(corpus: TokenCorpus, held_out: np.ndarray, seq_len: int) -> bool:
    """Whether a split leaves a sequence for validation, and at least half of the tokens for training."""
    tokens = corpus.count_tokens(np.flatnonzero(held_out))
    return seq_len <= tokens <= corpus.token_count // 2


def _hold_out_more(corpus: TokenCorpus, added: np.ndarray, kept: np.ndarray, seq_len: int) -> np.ndarray | None:
    """Documents in the order of their keys until they fill a sequence; None when too little would be left."""
    free = np.flatnonzero(~(added | kept))
    order = free[np.argsort(corpus.keys[free], kind="stable")]
    tokens = np.cumsum(corpus.find_lengths(order))
    missing = seq_len - corpus.count_tokens(np.flatnonzero(added))
    last = int(np.searchsorted(tokens, missing))
    if last >= len(order):
        return None
    more = ~(added | kept) & (corpus.keys <= corpus.keys[order[last]])  # copies of a text stay together
    held_out = added | more if missing > 0 else added
    return held_out if _is_enough(corpus, held_out, seq_len) else None


def _find_cut(
    corpus: TokenCorpus, added: np.ndarray, fraction: float, corpora: Sequence[TokenCorpus], seq_len: int
) -> dict[int, int]:
    """The longest document whose end can be held out: its key and the tokens of the end. Empty when that leaves less
    than a sequence to train on, or each one has copies."""
    tokens = max(math.ceil(fraction * corpus.token_count), seq_len)
    lengths = corpus.find_lengths(np.arange(corpus.document_count))
    long = np.flatnonzero((lengths - tokens >= seq_len) & ~added)
    keys = np.unique(corpus.keys[long])
    alone = keys[_count_copies(keys, corpora) == 1]
    long = long[is_in(corpus.keys[long], alone)]
    return {int(corpus.keys[long[lengths[long].argmax()]]): tokens} if len(long) else {}


def _count_copies(keys: np.ndarray, corpora: Sequence[TokenCorpus]) -> np.ndarray:
    """How many documents of all corpora have each of these keys, which are sorted."""
    counts = np.zeros(len(keys), np.int64)
    for corpus in corpora if len(keys) else ():
        for start in range(0, corpus.document_count, CHUNK_DOCUMENTS):
            chunk = corpus.keys[start : start + CHUNK_DOCUMENTS]
            counts += np.bincount(np.searchsorted(keys, chunk[is_in(chunk, keys)]), minlength=len(keys))
    return counts


def _cut_end(corpus: TokenCorpus, held_out: np.ndarray, document: int, tokens: int) -> tuple[TokenCorpus, np.ndarray]:
    """Make the last tokens of a document one of its own, which is held out."""
    end = int(corpus.offsets[document + 1])
    key = find_seed("cut", int(corpus.keys[document]), tokens)
    cut = replace(
        corpus,
        offsets=np.insert(corpus.offsets, document + 1, end - tokens),
        keys=np.insert(corpus.keys, document + 1, np.uint64(key)),
        content_hash=hashlib.sha256(f"{corpus.content_hash} {document} {tokens}".encode()).hexdigest(),
    )
    return cut, np.insert(held_out, document + 1, True)
