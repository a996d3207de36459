"""The arguments of `monograph hf import` and `monograph hf export`. Loads without torch, so mistakes show at once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from monograph.config.configurable import Configurable
from monograph.config.ranges import check_range
from monograph.errors import ConfigError

Weights = Literal["stored", "float32", "bfloat16", "float16"]


@dataclass(kw_only=True, slots=True)
class HfImportArguments(Configurable.Config):
    """`monograph hf import`."""

    source: str = ""
    """Hugging Face model folder: config.json and safetensors files."""
    out: str = ""
    """Checkpoint folder to write; a run starts from it with --checkpoint.load OUT --checkpoint.load_model_only."""
    dtype: Weights = "stored"
    """Type to keep the weights in; loading converts to what the run trains in, whatever is stored."""

    def check(self) -> None:
        if self.source and not (Path(self.source) / "config.json").is_file():
            raise ConfigError(
                f"{self.source} is not a Hugging Face model folder",
                why="it has no config.json" if Path(self.source).is_dir() else "there is no such folder",
                do="give a local folder; models on the hub have to be downloaded first",
            )
        check_free(self.out)


@dataclass(kw_only=True, slots=True)
class HfExportArguments(Configurable.Config):
    """`monograph hf export`."""

    checkpoint: str = ""
    """A checkpoint (.../checkpoints/step-00000100), or a folder of checkpoints for the newest good one."""
    out: str = ""
    """Hugging Face model folder to write."""
    config: str = ""
    """The model's configuration, where the checkpoint has none: a run's config.json, or one of Hugging Face's."""
    dtype: Weights = "stored"
    """Type to write the weights in."""
    max_file_gb: float = 5.0
    """Start a new file beyond this size."""

    def check(self) -> None:
        if self.checkpoint and not Path(self.checkpoint).is_dir():
            raise ConfigError(f"{self.checkpoint} is not a checkpoint", why="there is no such folder")
        if self.config and not Path(self.config).is_file():
            raise ConfigError(f"config is {self.config}", why="there is no such file")
        check_range(self, "max_file_gb", 1e-6, 1e6, why="a file has some size")
        check_free(self.out)


def check_free(out: str) -> None:
    """Refuse to write where something is."""
    path = Path(out)
    if out and (path.is_file() or (path.is_dir() and any(path.iterdir()))):
        raise ConfigError(f"{out} exists", why="nothing is overwritten", do="remove it, or choose another name")
