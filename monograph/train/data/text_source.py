"""Documents that can be read whole: tokenized into a corpus with random access, then packed into sequences."""

import hashlib
from collections.abc import Iterator

import numpy as np

from monograph.log import get_log
from monograph.train.data.checks import check_length, check_tokens, check_vocab, find_split
from monograph.train.data.corpus import CHUNK_DOCUMENTS, CorpusBuilder, TokenCorpus
from monograph.train.data.document import Document
from monograph.train.data.encode import count, count_noun, tokenize_into
from monograph.train.data.packing import ORDER, PackedSamples
from monograph.train.data.source import DataSource, OpenedSamples, SamplePlan
from monograph.train.data.tokenizer import Tokenizer

log = get_log(__name__)
LARGE_TOKENS = 1 << 30
"""From here on a corpus in the memory of every process is worth a word about packing."""


class TextSource(DataSource):
    """Documents in a stable order. A source of your own defines `read` alone."""

    is_split_by_text = True
    _corpus: TokenCorpus | None = None

    def read(self) -> Iterator[Document]:
        """All documents from the first one on, the same ones in the same order every time."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define read()")

    def corpus(self, plan: SamplePlan) -> TokenCorpus:
        """Everything tokenized, once for all splits, into memory or where the plan says."""
        if self._corpus is None:
            load = plan.load_corpus
            self._corpus = load(self, plan.tokenizer) if load is not None else self.load_corpus(plan.tokenizer)
        return self._corpus

    def load_corpus(self, tokenizer: Tokenizer) -> TokenCorpus:
        """Read and tokenize every document."""
        builder = CorpusBuilder(tokenizer.dtype)
        progress = tokenize_into(builder, self, tokenizer)
        if progress.tokens >= LARGE_TOKENS:
            log.info(
                "data: every process holds all %s tokens and took %.0f s to make them; "
                "`monograph data pack` does it once",
                *(count(progress.tokens), progress.seconds),
            )
        return builder.finish(self.description)

    def find_corpora(self, plan: SamplePlan) -> tuple[TokenCorpus, ...]:
        """All of it, once the model has embeddings for its tokens."""
        check_vocab(plan.tokenizer, plan.vocab_size)
        corpus = self.corpus(plan)
        check_tokens(corpus, plan.vocab_size)
        return (corpus,)

    def open(self, plan: SamplePlan) -> OpenedSamples:
        """Sequences of `seq_len` tokens, cut from the documents of a split in the epoch's order."""
        (corpus,) = self.find_corpora(plan)
        held_out = self.hold_out(plan).held_out
        assert held_out is not None
        corpus, members = find_split(corpus, held_out, plan.split, plan.seq_len)
        samples = PackedSamples(corpus, members, seq_len=plan.seq_len, seed=plan.seed, shuffle=plan.shuffle)
        check_length(samples.token_count, len(members), plan.seq_len, plan.purpose, corpus.description)
        return OpenedSamples(
            samples,
            hash_split(corpus, members),
            f"{corpus.description}, {plan.tokenizer.description}, {count_noun(len(members), 'document')}, "
            f"{count_noun(samples.token_count, 'token')}, {count_noun(samples.samples_per_epoch, 'sample')} per epoch",
        )


def hash_split(corpus: TokenCorpus, members: np.ndarray) -> str:
    """What decides the samples of a split besides seed and length: its documents, and how they are put in order."""
    found = hashlib.sha256(f"{ORDER} {corpus.content_hash}".encode())
    for start in range(0, len(members), CHUNK_DOCUMENTS):
        found.update(corpus.keys[members[start : start + CHUNK_DOCUMENTS]].tobytes())
    return found.hexdigest()
