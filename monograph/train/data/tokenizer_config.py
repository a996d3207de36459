"""Settings of tokenizers: how text becomes numbers. Loads without torch."""

from dataclasses import dataclass
from typing import ClassVar

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError


@dataclass(kw_only=True, slots=True)
class TokenizerConfig(Configurable.Config):
    """What every tokenizer has; your own is one flag away: --tokenizer package.module:Class."""

    owner: ClassVar[str] = "monograph.train.data.tokenizer:Tokenizer"
    is_base: ClassVar[bool] = True
    add_bos: bool = False
    """Begin every document with the bos token (it always ends with the eos token)."""


@dataclass(kw_only=True, slots=True)
class StandardTokenizerConfig(TokenizerConfig):
    """How text becomes numbers: the built-in byte tokenizer, or a Hugging Face tokenizer.json."""

    owner: ClassVar[str] = "monograph.train.data.tokenizer:StandardTokenizer"
    path: str = ""
    """A tokenizer.json, or a folder that holds one; empty uses the built-in byte tokenizer. Its ids must be below
    model.vocab_size."""
    bos_token: str = ""
    """Token that begins a document; empty asks tokenizer_config.json, then tries the usual names."""
    eos_token: str = ""
    """Token that ends a document; empty asks tokenizer_config.json, then tries the usual names."""
    allow_special: bool = False
    """Read special tokens from texts: "<|endoftext|>" in a document then ends it. Without it they are plain text."""

    def check(self) -> None:
        for name in ("bos_token", "eos_token", "allow_special"):
            if getattr(self, name) and not self.path:
                raise ConfigError(
                    f"{name} is {getattr(self, name)!r} but path is empty",
                    why="the built-in byte tokenizer has its own special tokens, which no text can write",
                    do=f"leave --tokenizer.{name} out, or name a tokenizer.json as well: --tokenizer.path FILE",
                )
