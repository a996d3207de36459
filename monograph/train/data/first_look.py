"""A look at the beginning of local data, before torch is imported: what cannot be read is refused at once."""

from pathlib import Path

from monograph.errors import DataError
from monograph.plurals import counted
from monograph.system.foreign_text import show
from monograph.train.data.config import LINES_ENDINGS, PARQUET_ENDING
from monograph.train.data.files import (
    check_ending,
    check_exists,
    decode_beginning,
    find_files,
    named_failures,
    read_lines,
    read_parquet,
)
from monograph.train.data.open_bytes import open_bytes
from monograph.train.data.shard_index import INDEX

MOST_FILES = 4
"""Files of a folder whose beginning is read."""
BEGINNING_BYTES = 1 << 16


def check_beginning(path: Path, *, text_field: str, seq_len: int = 0) -> None:
    """Refuse a file or folder whose first documents cannot be read, or that is too small for one sequence."""
    check_exists(path)
    if path.is_dir() and (path / INDEX).exists():
        return  # packed token shards
    files = find_files(path) if path.is_dir() else [path]
    for file in files[:MOST_FILES]:
        check_ending(file)
        with named_failures(file):
            _read_beginning(file, text_field)
    sizes = [file.stat().st_size for file in files]
    if not sum(sizes):
        raise DataError(
            f"the dataset is empty: {show(path)}",
            why=f"{counted(len(files), 'file')} of 0 bytes",
            do="name files that hold text: --dataloader.dataset PATH",
        )
    is_packed = any(file.name.endswith((".gz", PARQUET_ENDING)) for file in files)
    if not is_packed and sum(sizes) + len(sizes) < seq_len:  # a document has at most a token per byte and its end
        raise DataError(
            f"the dataset is shorter than one sequence: {show(path)}",
            why=f"it has {counted(sum(sizes), 'byte')}, and training.seq_len is {seq_len} tokens",
            do="more text, or a smaller --training.seq_len",
        )


def _read_beginning(path: Path, text_field: str) -> None:
    """Read the first document, or the first bytes of a text."""
    if path.name.endswith(PARQUET_ENDING):
        next(read_parquet(path, text_field), None)
    elif path.name.removesuffix(".gz").endswith(LINES_ENDINGS):
        next(read_lines(path, text_field), None)
    else:
        with open_bytes(path) as (file, _):
            decode_beginning(file.read(BEGINNING_BYTES), show(path))
