"""What a run knows of a model's settings, whatever kind of model it is. Loads without torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from monograph.axes import Axis
from monograph.config.configurable import Configurable, walk_configs


class DividedSize(NamedTuple):
    """Something that the ranks along an axis divide among themselves in equal parts."""

    axis: Axis
    what: str
    """The field, or fields, that decide it."""
    size: int
    is_repeated: bool = False
    """Whether several ranks may have the same part, where there are fewer parts than ranks."""


class LatentSizes(NamedTuple):
    """Channels of latent attention: of the latent, of the key that all heads share, and of one head."""

    latent: int
    shared: int
    heads: int
    key: int
    """The shared ones included."""
    value: int


class SequenceLimit(NamedTuple):
    """How long a sequence can be, and the field that says so."""

    field: str
    tokens: int


@dataclass(kw_only=True, slots=True)
class ModelConfig(Configurable.Config):
    """The settings of a model. Parts of it say what ranks divide: `find_divided_sizes()` of a part's Config."""

    fits_positions: ClassVar[bool] = False
    """Whether `rope.max_seq_len` is the length of tables alone, which no checkpoint holds: then a run has tables for
    its own sequences."""

    is_base: ClassVar[bool] = True

    def find_vocab_size(self) -> int | None:
        """Token ids run below this; None for a model that reads no tokens."""
        return getattr(self, "vocab_size", None)

    def find_sequence_limit(self) -> SequenceLimit | None:
        """The field that limits the length of a sequence, with its value; None where nothing does."""
        rope = getattr(self, "rope", None)
        return None if rope is None else SequenceLimit("model.rope.max_seq_len", rope.max_seq_len)

    def find_units(self) -> tuple[str, ...] | None:
        """The paths of the units that the model will have, where that is known before it is built."""
        return None

    def find_moe(self) -> Any:
        """The settings of its experts; None when it has none."""
        return None

    def for_device(self, device: str) -> Self:
        """The same model as it runs on such a device ("cuda", "cpu"), wherever it is captured: what `auto` decides by
        the device of its tensors is decided for this one."""
        if getattr(self, "kernels", "") != "auto":
            return self
        return self.replace(kernels="fused" if device == "cuda" else "plain")

    def for_length(self, tokens: int) -> Self:
        """The same model with tables of positions for so many tokens, where it says that they may be shorter: published
        models allow millions of positions, and a row for each would take gigabytes."""
        rope = getattr(self, "rope", None) if self.fits_positions else None
        if rope is None or rope.max_seq_len <= tokens:
            return self
        return self.replace(rope=rope.replace(max_seq_len=tokens))

    def find_latent_sizes(self) -> LatentSizes | None:
        """The sizes of its latent attention; None when it has none."""
        parts = (part for _, part in walk_configs(self, "model") if part is not self)
        finders = (getattr(part, "find_latent_sizes", None) for part in parts)
        return next((find() for find in finders if find is not None), None)

    def find_all_divided_sizes(self) -> Iterator[DividedSize]:
        """What all parts divide among ranks, in the order of the config; experts that do not exist divide nothing."""
        unused = getattr(self, "moe", None) if self.find_moe() is None else None
        for path, part in walk_configs(self, "model"):
            find = getattr(part, "find_divided_sizes", None)
            if find is not None and part is not unused:
                yield from (found._replace(what=f"{path}.{found.what}") for found in find())
