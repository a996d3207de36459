"""The arguments of `monograph hf import` and `monograph hf export`. Loads without torch, so mistakes show at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError
from monograph.system.foreign_text import show
from monograph.train.checkpoint.hf_assets import CONFIG_NAME, TOKENIZER_NAME
from monograph.train.checkpoint.hf_source import find_local

Weights = Literal["stored", "float32", "bfloat16", "float16"]


@dataclass(kw_only=True, slots=True)
class HfImportArguments(Configurable.Config):
    """`monograph hf import`."""

    source: str = ""
    """Hugging Face model: a folder, a folder of its cache, or organization/name of one on the hub."""
    out: str = ""
    """Checkpoint folder to write, tokenizer included; a run starts from it with --model.from OUT."""
    dtype: Weights = "stored"
    """Type to keep the weights in; loading converts to what the run trains in, whatever is stored."""

    def check(self) -> None:
        path = find_local(self.source) if self.source else None
        if path is not None and not (path / CONFIG_NAME).is_file():
            raise ConfigError(
                f"{self.source} is not a Hugging Face model folder",
                why=f"it has no {CONFIG_NAME}",
                do="give a folder with config.json and safetensors files, or organization/name of a model on the hub",
            )
        check_free(self.out)


@dataclass(kw_only=True, slots=True)
class HfExportArguments(Configurable.Config):
    """`monograph hf export`."""

    checkpoint: str = ""
    """The folder of a run for its newest good checkpoint, a folder of checkpoints, or one checkpoint."""
    out: str = ""
    """Hugging Face model folder to write."""
    config: str = ""
    """The model's configuration, where the checkpoint has none: a run's config.json, or one of Hugging Face's."""
    dtype: Weights = "stored"
    """Type to write the weights in."""
    tokenizer: str = "auto"
    """Folder whose tokenizer files are exported; auto takes those of the run or import; none exports no tokenizer."""
    max_file_gb: float = 5.0
    """Start a new file beyond this size."""

    def check(self) -> None:
        if self.checkpoint and not Path(self.checkpoint).is_dir():
            raise ConfigError(f"{self.checkpoint} is not a checkpoint", why="there is no such folder")
        if self.config and not Path(self.config).is_file():
            raise ConfigError(f"config is {self.config}", why="there is no such file")
        if self.tokenizer not in ("auto", "none") and not (Path(self.tokenizer) / TOKENIZER_NAME).is_file():
            raise ConfigError(
                f"tokenizer is {self.tokenizer}", why=f"it holds no {TOKENIZER_NAME}", do="--tokenizer auto, or none"
            )
        check_range(self, "max_file_gb", 1e-6, 1e6, why="a file has some size")
        check_free(self.out)


def check_free(out: str) -> None:
    """Refuse to write where something is, and through a link: the folder would take the link's place."""
    path = Path(out)
    if out and path.is_symlink():
        raise ConfigError(
            f"{show(out)} is a link",
            why=f"it leads to {show(path.readlink())}",
            do="give the folder itself, or another name",
        )
    if out and (path.is_file() or (path.is_dir() and any(path.iterdir()))):
        raise ConfigError(f"{out} exists", why="nothing is overwritten", do="remove it, or choose another name")
