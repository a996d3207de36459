"""Configs that may stand where another one stands, and some that may not."""

from dataclasses import dataclass, field

from monograph.config.configurable import Configurable
from tests.config.toys import ModelConfig, StageConfig


class Deep:
    """A component with a Config that is nested, as users write them."""

    @dataclass(kw_only=True, slots=True)
    class Config(ModelConfig):
        depth: int
        """A field without a default that the old section lacks."""
        layers: int = 9
        """Another default than the base has."""


@dataclass(kw_only=True, slots=True)
class NestedModelConfig(ModelConfig):
    """A required section inside: both classes are chosen by flags."""

    stage: StageConfig
    """A section without a default."""


@dataclass(kw_only=True, slots=True)
class OtherDimConfig(ModelConfig):
    """The same name with another type is not the same field."""

    dim: str  # type: ignore[assignment]
    """A text."""


@dataclass(kw_only=True, slots=True)
class LateStageConfig(StageConfig):
    """A stage with a field of its own."""

    last: int = 7
    """Last layer of the stage."""
    names: list[str] = field(default_factory=list)
    """Some names."""


class Plain:
    """No component at all."""


class Unrelated(Configurable):
    """A component that belongs elsewhere."""

    @dataclass(kw_only=True, slots=True)
    class Config(Configurable.Config):
        size: int = 1
        """A number."""
