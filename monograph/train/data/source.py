"""Which reader serves a dataset's name: the built-in corpus, local files, or rows from a stream."""

from pathlib import Path

from monograph.train.data.builtin import open_builtin
from monograph.train.data.config import BUILTIN, HUB_PREFIX, DataLoaderConfig
from monograph.train.data.document import DocumentSource
from monograph.train.data.files import open_files
from monograph.train.data.stream import RowFactory, RowStream, open_hub


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
