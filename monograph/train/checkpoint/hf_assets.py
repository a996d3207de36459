"""The small files of a Hugging Face model besides its weights: tokenizer, chat template, generation settings.

They go with a model from import to run to export, as they are. Loads without torch.
"""

from pathlib import Path

from monograph.system.foreign_json import UnusableFile, read_file
from monograph.system.foreign_text import show

MAX_ASSET_BYTES = 512 << 20
"""Far above the largest tokenizer."""

CONFIG_NAME = "config.json"
TOKENIZER_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
GENERATION_NAME = "generation_config.json"
ASSET_NAMES = (
    TOKENIZER_NAME,
    TOKENIZER_CONFIG_NAME,
    GENERATION_NAME,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "chat_template.json",
)
"""Data, all of them; nothing that could be run."""
ASSETS_FOLDER = "tokenizer"
"""Where a run keeps those of its tokenizer, in its own folder."""


def find_assets(folder: Path) -> dict[str, Path]:
    """The files of a folder that go with its model, by name."""
    found = {name: folder / name for name in ASSET_NAMES}
    return {name: path for name, path in found.items() if path.is_file()}


def read_asset(path: Path) -> bytes:
    """Content of one of these files; an error that names a file which is too large or cannot be read."""
    try:
        return read_file(path, max_bytes=MAX_ASSET_BYTES)
    except OSError as error:
        raise UnusableFile(f"cannot read {show(path)}", why=error.strerror or str(error)) from None
