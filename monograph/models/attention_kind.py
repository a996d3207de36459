"""What a layer's queries see of their sequence, besides packed documents. Loads without torch."""

from typing import NamedTuple


class AttentionKind(NamedTuple):
    """A kind of attention; layers of one kind share one table of segments."""

    name: str
    causal: bool = True
    """A query sees no keys after its own position."""
    window: int = 0
    """Keys a query sees, its own included; 0 for all."""
    chunk: int = 0
    """A document is divided into chunks of this many tokens, and a query sees its own chunk; 0 for no chunks."""

    @property
    def is_plain(self) -> bool:
        """Whether kernels know it by themselves, where a sequence is one text."""
        return not self.window and not self.chunk


CAUSAL = AttentionKind("causal")
