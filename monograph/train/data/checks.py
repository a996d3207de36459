"""What cannot be trained on is refused, with numbers and with what to change."""

import numpy as np

from monograph.errors import DataError
from monograph.train.data.corpus import TokenCorpus
from monograph.train.data.hold_out import split_corpus
from monograph.train.data.split import HeldOutTexts, Split, select
from monograph.train.data.tokenizer import Tokenizer


def check_vocab(tokenizer: Tokenizer, vocab_size: int | None) -> None:
    """Refuse a tokenizer with ids the model has no embedding for, before anything is read."""
    if vocab_size is not None and tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"the tokenizer's largest id is {tokenizer.vocab_size - 1} but model.vocab_size is {vocab_size}",
            why=f"the model has no embedding for ids from {vocab_size} on",
            do=f"--model.vocab_size {tokenizer.vocab_size}, or another --tokenizer.path",
        )


def check_tokens(corpus: TokenCorpus, vocab_size: int | None) -> None:
    """The same for the ids that really occur, whatever the tokenizer says about itself."""
    if vocab_size is not None and corpus.max_token_id >= vocab_size:
        raise DataError(
            f"the dataset holds the token id {corpus.max_token_id} but model.vocab_size is {vocab_size}",
            why=f"the model has no embedding for ids from {vocab_size} on ({corpus.description})",
            do=f"--model.vocab_size {corpus.max_token_id + 1}, or tokenize the dataset with this model's tokenizer",
        )


def find_split(corpus: TokenCorpus, plan: HeldOutTexts, split: Split, seq_len: int) -> tuple[TokenCorpus, np.ndarray]:
    """The documents of a split, and the corpus they are numbered in; an empty one is an error that says what to do."""
    corpus, held_out = split_corpus(corpus, plan)
    members = select(held_out, split)
    if not len(members) and split == "train":
        raise DataError(
            f"nothing is left to train on: {corpus.description}",
            why="all of its documents are held out, as copies of texts that are held out of other sources",
            do="take it out of the mixture, or --dataloader.validation_datasets PATH",
        )
    if not len(members):
        raise DataError(
            f"nothing is held out for validation: {corpus.description}",
            why=f"held_out_fraction is {plan.fraction}, and its {corpus.document_count} documents have "
            f"{corpus.token_count} tokens for training.seq_len {seq_len}; a text with copies is not cut",
            do="--validator.interval 0, or other data: --dataloader.validation_datasets PATH",
        )
    return corpus, members


def check_length(token_count: int, document_count: int, seq_len: int, split: Split, description: str) -> None:
    """Refuse data that does not fill one sequence."""
    if token_count < seq_len:
        more = ", or a larger --dataloader.held_out_fraction" if split == "validation" else ""
        raise DataError(
            f"the {split} data is shorter than one sequence: {token_count} tokens for training.seq_len {seq_len}",
            why=f"it has {document_count} documents ({description})",
            do=f"--training.seq_len {token_count} or less, or more text{more}",
        )
