"""One copy of a tokenized corpus for all ranks of a node: the first of them writes it to disk, and all map it.

Without this each process reads and tokenizes everything and holds it: eight ranks took eight times the memory and the
time of one. The copy is what `monograph data pack` writes, in a folder for temporary files that only this user can
enter; it is deleted as soon as all ranks have mapped it, and its pages go when the last of them ends.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from monograph.errors import DataError, MonographError
from monograph.locks.holder import find_machine, read_process
from monograph.log import get_log
from monograph.parallel.groups import Groups
from monograph.private_temporary import make_private_temporary
from monograph.system.own_file import create_own
from monograph.system.own_tree import remove_made
from monograph.train.data.corpus import TokenCorpus
from monograph.train.data.encode import tokenize_into
from monograph.train.data.open_shards import open_shards
from monograph.train.data.shard_index import INDEX
from monograph.train.data.shards import ShardWriter
from monograph.train.data.text_source import TextSource
from monograph.train.data.tokenizer import Tokenizer

_CORPUS, _FAILED = "corpus", "failed"
_POLL_SECONDS = 0.05
log = get_log("data")


def load_on_node(
    groups: Groups, source: TextSource, tokenizer: Tokenizer, *, sleep: Callable[[float], None] = time.sleep
) -> TokenCorpus:
    """Load the corpus of a source once for each node. All ranks call this for the same sources in the same order.

    A source that loads its corpus itself (packed shards map theirs already) does so on every rank.
    """
    if not groups.has_peers or type(source).load_corpus is not TextSource.load_corpus:
        return source.load_corpus(tokenizer)
    nodes = groups.all_gather_object((find_machine(), os.getcwd(), source.identity()))
    peers = [rank for rank, node in enumerate(nodes) if node == nodes[groups.rank]]
    is_writer = groups.rank == peers[0]
    folder = make_corpus_folder() if is_writer and len(peers) > 1 else None
    folder, writer = groups.all_gather_object((folder, os.getpid()))[peers[0]]
    corpus, problem = None, None
    try:
        if is_writer and folder is not None:
            _write(folder, source, tokenizer)
        elif folder is not None:
            _wait(folder, writer, sleep)
        corpus = _open(folder, source, tokenizer) if folder is not None else source.load_corpus(tokenizer)
    except MonographError as error:
        problem = error
    problems = groups.all_gather_object(problem)
    if is_writer and folder is not None:
        remove_made(folder)
    for problem in problems:
        if problem is not None:
            raise problem
    return corpus or source.load_corpus(tokenizer)


def make_corpus_folder() -> Path | None:
    """Make a folder that no other user can replace; None, with a warning, where there is no place for one."""
    try:
        return make_private_temporary("monograph-tokens-")
    except (OSError, MonographError) as error:
        log.warning("data: every process of this node holds the corpus: no folder for temporary files (%s)", error)
        return None


def _write(folder: Path, source: TextSource, tokenizer: Tokenizer) -> None:
    """Write the corpus; the others wait for its index, or for the file that says why there is none."""
    try:
        with ShardWriter(folder / _CORPUS, tokenizer) as writer:
            tokenize_into(writer, source, tokenizer)
            writer.finish(source.description)
    except BaseException as error:
        with suppress(OSError):
            os.close(create_own(folder / _FAILED))
        if not isinstance(error, OSError):
            raise
        log.warning("data: every process of this node holds the corpus: %s cannot hold it (%s)", folder, error)


def _wait(folder: Path, writer: int, sleep: Callable[[float], None]) -> None:
    """Wait until the corpus is written, which takes as long as tokenizing it does."""
    started = read_process(writer)[1]
    while not (folder / _CORPUS / INDEX).exists() and not (folder / _FAILED).exists():
        sleep(_POLL_SECONDS)
        state, start = read_process(writer)
        if state in ("", "Z") or start != started:
            raise DataError("the rank that tokenized the data for this node has ended", do="see its log")


def _open(folder: Path, source: TextSource, tokenizer: Tokenizer) -> TokenCorpus | None:
    """Map the corpus; None where it could not be written."""
    if not (folder / _CORPUS / INDEX).exists():
        return None
    return replace(open_shards(folder / _CORPUS, tokenizer, verify="sizes"), description=source.description)
