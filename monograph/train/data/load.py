"""From a dataset's name to its documents, or to a corpus with random access; what cannot be trained on is refused."""

from pathlib import Path

import numpy as np

from monograph.errors import DataError
from monograph.log import get_log
from monograph.train.data.builtin import open_builtin
from monograph.train.data.config import BUILTIN, HUB_PREFIX, DataLoaderConfig
from monograph.train.data.corpus import CorpusBuilder, TokenCorpus
from monograph.train.data.document import DocumentSource
from monograph.train.data.encode import count, tokenize_into
from monograph.train.data.files import open_files
from monograph.train.data.open_shards import is_shard_folder, open_shards
from monograph.train.data.split import Split, find_members
from monograph.train.data.stream import RowFactory, RowStream, open_hub
from monograph.train.data.tokenizer import Tokenizer

log = get_log(__name__)
LARGE_TOKENS = 1 << 30
"""From here on a corpus in the memory of every process is worth a word about packing."""


def is_stream(name: str) -> bool:
    """Whether this dataset can only be read from front to back."""
    return name.startswith(HUB_PREFIX)


def open_stream(name: str, config: DataLoaderConfig, rows: RowFactory | None = None) -> RowStream:
    """The rows of an 'hf:' dataset, or of `rows` in its place."""
    description = f"{name} {config.hf_subset}".strip() + f" [{config.hf_split}]"
    factory = rows or open_hub(
        name.removeprefix(HUB_PREFIX), subset=config.hf_subset, split=config.hf_split, revision=config.hf_revision
    )
    return RowStream(factory, description=description, text_field=config.text_field, retries=config.stream_retries)


def open_documents(name: str, config: DataLoaderConfig, rows: RowFactory | None = None) -> DocumentSource:
    """The documents of a dataset that is not packed into tokens yet."""
    if name == BUILTIN:
        return open_builtin()
    if is_stream(name):
        stream = open_stream(name, config, rows)
        return DocumentSource(stream.description, stream.read)
    return open_files(Path(name), text_field=config.text_field, separator=config.document_separator)


def load_corpus(name: str, config: DataLoaderConfig, tokenizer: Tokenizer) -> TokenCorpus:
    """A packed dataset, mapped; any other dataset that can be read whole, tokenized into memory."""
    if is_shard_folder(Path(name)):
        return open_shards(Path(name), tokenizer, verify=config.verify_shards)
    source = open_documents(name, config)
    builder = CorpusBuilder(tokenizer.dtype)
    progress = tokenize_into(builder, source, tokenizer)
    if progress.tokens >= LARGE_TOKENS:
        log.info(
            "data: every process holds all %s tokens and took %.0f s to make them; `monograph data pack` does it once",
            *(count(progress.tokens), progress.seconds),
        )
    return builder.finish(source.description)


def check_vocab(tokenizer: Tokenizer, vocab_size: int) -> None:
    """Refuse a tokenizer with ids the model has no embedding for, before anything is read."""
    if tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"the tokenizer's largest id is {tokenizer.vocab_size - 1} but model.vocab_size is {vocab_size}",
            why=f"the model has no embedding for ids from {vocab_size} on",
            do=f"--model.vocab_size {tokenizer.vocab_size}, or another --tokenizer.path",
        )


def check_tokens(corpus: TokenCorpus, vocab_size: int) -> None:
    """The same for the ids that really occur, whatever the tokenizer says about itself."""
    if corpus.max_token_id >= vocab_size:
        raise DataError(
            f"the dataset holds the token id {corpus.max_token_id} but model.vocab_size is {vocab_size}",
            why=f"the model has no embedding for ids from {vocab_size} on ({corpus.description})",
            do=f"--model.vocab_size {corpus.max_token_id + 1}, or tokenize the dataset with this model's tokenizer",
        )


def find_split(corpus: TokenCorpus, fraction: float, split: Split) -> np.ndarray:
    """The documents of a split; an empty one is an error that says what to change."""
    members = find_members(corpus.keys, fraction, split)
    if not len(members):
        raise DataError(
            f"no document is held out for validation: {corpus.description}",
            why=f"held_out_fraction is {fraction} of {corpus.document_count} documents; none is cut in two",
            do="raise --dataloader.held_out_fraction, cut text files with --dataloader.document_separator, "
            "or name files of their own with --dataloader.validation_dataset",
        )
    return members


def check_length(token_count: int, document_count: int, seq_len: int, split: Split, description: str) -> None:
    """Refuse data that does not fill one sequence."""
    if token_count < seq_len:
        more = ", or a larger --dataloader.held_out_fraction" if split == "validation" else ""
        raise DataError(
            f"the {split} data is shorter than one sequence: {token_count} tokens for training.seq_len {seq_len}",
            why=f"it has {document_count} documents ({description})",
            do=f"--training.seq_len {token_count} or less, or more text{more}",
        )
