"""What the options of every pass share. Loads without torch."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, Literal

from monograph.config.configurable import Configurable

Numerics = Literal["exact", "fast", "float8"]
"""Classes of numerics, each with everything that the one before it allows."""
CLASSES: tuple[Numerics, ...] = ("exact", "fast", "float8")


@dataclass(kw_only=True, slots=True)
class PassOptions(Configurable.Config):
    """The options of one pass. They stand in a file beside the pass, because the pass itself imports torch."""

    switch: ClassVar[str] = ""
    """The option that asks for the pass by itself once it differs from its default."""
    example: ClassVar[str] = ""
    """A value of it, for error messages."""

    @property
    def is_asked(self) -> bool:
        """Whether the options ask for the pass, so that no other switch is needed."""
        (default,) = [each.default for each in dataclasses.fields(self) if each.name == self.switch] or [None]
        return bool(self.switch) and getattr(self, self.switch) != default
