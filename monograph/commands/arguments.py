"""The arguments of the commands that take no recipe, as Configs: parsed, checked and explained like all the others."""

from dataclasses import dataclass, field
from typing import Literal

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.train.data.config import TokenizerConfig


@dataclass(kw_only=True, slots=True)
class DataPackArguments(Configurable.Config):
    """`monograph data pack`."""

    dataset: str = ""
    """'builtin', a text/jsonl/parquet file, a folder of these, or 'hf:NAME'."""
    out: str = ""
    """Folder to write the token shards to."""
    overwrite: bool = False
    """Replace an existing folder of token shards."""
    shard_tokens: int = 1 << 28
    """Tokens after which a new file is begun."""
    text_field: str = "text"
    """Field (jsonl, streams) or column (parquet) that holds a document's text."""
    document_separator: str = ""
    """Cut text files into documents at this string; empty makes each file one document."""
    hf_subset: str = ""
    """Subset (configuration name) of an 'hf:' dataset."""
    hf_split: str = "train"
    """Split of an 'hf:' dataset."""
    hf_revision: str = ""
    """Commit or tag of an 'hf:' dataset."""
    stream_retries: int = 8
    """Attempts in a row, with growing pauses, before a failing stream ends the command."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """The tokenizer; a run on the shards must use the same one."""

    def check(self) -> None:
        if self.shard_tokens < 1:
            raise ConfigError(
                f"--shard_tokens {self.shard_tokens}", why="a file holds tokens", do="--shard_tokens 268435456"
            )


WeightDtype = Literal["float32", "bfloat16", "float16"]


@dataclass(kw_only=True, slots=True)
class HfImportArguments(Configurable.Config):
    """`monograph hf import`."""

    source: str = ""
    """Folder with a config.json and safetensors files, as Hugging Face publishes models."""
    out: str = ""
    """Checkpoint to write; start from it with --checkpoint.load OUT --checkpoint.load_model_only."""
    dtype: WeightDtype | None = None
    """Store the weights in this type; None keeps the one they have."""
    max_file_bytes: int = 4 << 30
    """Begin a new file when one would grow beyond this."""

    def check(self) -> None:
        check_file_bytes(self.max_file_bytes)


@dataclass(kw_only=True, slots=True)
class HfExportArguments(Configurable.Config):
    """`monograph hf export`."""

    checkpoint: str = ""
    """Checkpoint to read: one step's folder."""
    out: str = ""
    """Folder to write: a config.json and safetensors files that transformers loads."""
    config: str = ""
    """The run's config.json, or one of Hugging Face's, for a checkpoint that does not say which model it holds."""
    dtype: WeightDtype | None = None
    """Store the weights in this type; None keeps the one they have."""
    max_file_bytes: int = 5_000_000_000
    """Begin a new file when one would grow beyond this."""

    def check(self) -> None:
        check_file_bytes(self.max_file_bytes)


def check_file_bytes(max_file_bytes: int) -> None:
    """Refuse a size no tensor fits in."""
    if max_file_bytes < 1:
        raise ConfigError(f"--max_file_bytes {max_file_bytes}", why="it is a size in bytes", do="write 1 or more")
