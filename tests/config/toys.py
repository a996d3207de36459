"""Small Configs with one field of every kind the command line and the files must cope with."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from monograph.config.annotations import Names
from monograph.config.configurable import Configurable
from monograph.errors import ConfigError


def double(value: int) -> int:
    return 2 * value


def triple(value: int) -> int:
    return 3 * value


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclass(kw_only=True, slots=True)
class RopeConfig(Configurable.Config):
    max_seq_len: int = 4096
    """Longest sequence."""
    factors: tuple[float, float] = (1.0, 4.0)
    """Low and high."""


@dataclass(kw_only=True, slots=True)
class ModelConfig(Configurable.Config):
    dim: int
    """Width of the model."""
    layers: int = 2
    """How many
    blocks."""
    rope: RopeConfig = field(default_factory=RopeConfig)
    """Positions."""
    lora_rank: int | None = None
    """Rank, if any."""

    def check(self) -> None:
        if self.dim % 2:
            raise ConfigError(f"dim is {self.dim}", why="it must be even", do=f"--model.dim {self.dim + 1}")


@dataclass(kw_only=True, slots=True)
class WideModelConfig(ModelConfig):
    """A subclass: its fields must appear wherever a ModelConfig stands."""

    rope: RopeConfig = field(default_factory=lambda: RopeConfig(max_seq_len=8192))
    """Positions, further apart."""
    experts: int = 8
    """Only the wide one has experts."""


@dataclass(kw_only=True, slots=True)
class TrainingConfig(Configurable.Config):
    steps: int = 100
    """Updates."""
    lr: float = 3e-4
    """Peak rate."""
    name: str = "run"
    """Free text."""
    note: str | None = None
    """Optional text."""
    deterministic: bool = False
    """Same bits twice."""
    decay: Literal["cosine", "linear"] = "cosine"
    """Shape."""
    sizes: list[int] = field(default_factory=lambda: [1, 2])
    """Whole numbers."""
    names: tuple[str, ...] = ()
    """Any number of texts."""
    labels: Names = ()
    """Any number of names."""
    nested: list[list[int]] = field(default_factory=list)
    """Lists of lists."""
    window: tuple[int, int] | None = None
    """Two numbers or none."""
    weights: dict[str, float] = field(default_factory=dict)
    """Shares by name."""
    limit: float | Literal["auto"] = "auto"
    """A number or a word."""
    transform: Callable[[int], int] = double
    """A function."""
    folder: Path = Path("out")
    """A path."""
    color: Color = Color.RED
    """An enum."""
    switches: list[bool] = field(default_factory=list)
    """Booleans."""


@dataclass(kw_only=True, slots=True)
class StageConfig(Configurable.Config):
    first: int = 0
    """First layer of the stage."""


@dataclass(kw_only=True, slots=True)
class RunConfig(Configurable.Config):
    """A whole run."""

    owner: ClassVar[str] = "tests.config.toys:Run"
    model: ModelConfig
    """The model."""
    training: TrainingConfig = field(default_factory=TrainingConfig)
    """The loop."""
    validator: StageConfig | None = None
    """Off unless a recipe sets it."""
    stages: list[StageConfig] = field(default_factory=list)
    """Sections in a list."""


class Run(Configurable):
    Config = RunConfig

    def __init__(self, config: RunConfig, *, speed: int = 1) -> None:
        self.config, self.speed = config, speed


def make_run(**changes: object) -> RunConfig:
    """A recipe, in effect."""
    return RunConfig(model=WideModelConfig(dim=64, layers=4), **changes)
