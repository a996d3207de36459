"""`monograph data pack`: tokenize a dataset once, so that every later run on any number of ranks opens it at once."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from monograph.config.leaves import find_leaves
from monograph.config.origins import find_defaults
from monograph.config.references import name_of
from monograph.errors import DataError
from monograph.system.foreign_text import show
from monograph.system.own_tree import check_replaceable
from monograph.train.data.config import DataLoaderConfig
from monograph.train.data.dataset_name import choose_source
from monograph.train.data.encode import count_noun, tokenize_into
from monograph.train.data.shard_index import list_files
from monograph.train.data.shards import KIND, SHARD_TOKENS, ShardWriter
from monograph.train.data.text_source import TextSource
from monograph.train.data.tokenizer import Tokenizer
from monograph.train.data.tokenizer_config import StandardTokenizerConfig, TokenizerConfig


@dataclass(frozen=True, slots=True)
class PackSummary:
    """What was written."""

    folder: Path
    documents: int
    tokens: int
    files: int
    bytes: int
    content_hash: str
    seconds: float
    flags: tuple[str, ...]
    """What a run that reads them must be given."""

    def __str__(self) -> str:
        return (
            f"packed {count_noun(self.documents, 'document')}, {count_noun(self.tokens, 'token')} into "
            f"{count_noun(self.files, 'token shard')} ({self.bytes / 2**20:.1f} MiB) in {self.seconds:.1f} s\n"
            f"train on them with: {shlex.join(self.flags)}"
        )


def find_flags(tokenizer: TokenizerConfig) -> list[str]:
    """The flags that make a run use this tokenizer."""
    is_standard = type(tokenizer) is StandardTokenizerConfig
    words = [] if is_standard else ["--tokenizer", name_of(type(tokenizer))]
    defaults = find_defaults(tokenizer)
    for leaf in find_leaves(tokenizer):
        if leaf.path not in defaults or leaf.value != defaults[leaf.path]:
            words += [f"--tokenizer.{leaf.path}", str(leaf.value)]
    return words


def choose_documents(config: DataLoaderConfig) -> TextSource:
    """The source of the documents; finished samples and tokens cannot be packed."""
    source = choose_source(config).build()
    if not isinstance(source, TextSource):
        raise DataError(f"{source.description} has no documents", why="only text is packed", do="train on it as it is")
    return source


def pack(
    dataset: DataLoaderConfig,
    tokenizer: TokenizerConfig,
    out_folder: Path,
    *,
    shard_tokens: int = SHARD_TOKENS,
    overwrite: bool = False,
    source: TextSource | None = None,
) -> PackSummary:
    """Tokenize `dataset.dataset` into a folder of token shards. Logs its progress; the folder appears when whole."""
    if shard_tokens < 1:
        raise DataError(
            f"shard_tokens is {shard_tokens}", why="a shard holds at least one token", do=f"try {SHARD_TOKENS}"
        )
    if os.path.lexists(out_folder):
        if not overwrite:
            raise DataError(
                f"'{show(out_folder)}' exists already",
                why="packing does not add to a folder",
                do="choose another, or --overwrite",
            )
        check_replaceable(out_folder, KIND, list_files)
    built: Tokenizer = tokenizer.build()
    source = source or choose_documents(dataset)
    with ShardWriter(out_folder, built, shard_tokens=shard_tokens) as writer:
        progress = tokenize_into(writer, source, built)
        index = writer.finish(source.description)
    return PackSummary(
        folder=out_folder,
        documents=index.documents,
        tokens=index.tokens,
        files=len(index.token_files),
        bytes=sum(entry.bytes for entry in index.token_files),
        content_hash=index.content_hash,
        seconds=progress.seconds,
        flags=("--dataloader.dataset", str(out_folder), *find_flags(tokenizer)),
    )
