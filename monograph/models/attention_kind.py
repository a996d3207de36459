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

    def describe(self) -> str:
        """`causal`, `causal, window 128`, `full, chunk 64`: all but the name."""
        words = ["causal" if self.causal else "full"]
        words += [f"window {self.window}"] if self.window else []
        return ", ".join([*words, *([f"chunk {self.chunk}"] if self.chunk else [])])

    def count_keys(self, seq_len: int) -> tuple[float, float]:
        """Keys that a query meets in a sequence that is one text: as many as any may see, and as it sees on average."""
        if self.chunk and self.chunk < seq_len:
            n_chunks, rest = divmod(seq_len, self.chunk)
            most, mean = float(self.chunk), (n_chunks * self.chunk**2 + rest**2) / seq_len
        else:
            most = mean = float(seq_len)
        if self.window and self.window < most:
            assert not self.chunk, "a window within chunks"
            most, mean = float(self.window), 2 * self.window - self.window**2 / seq_len
        return most, mean / 2 if self.causal else mean


CAUSAL = AttentionKind("causal")
_SLICE = ", a slice of queries from "


def read_kind(text: str) -> AttentionKind:
    """What `AttentionKind.describe` wrote."""
    first, *rest = text.split(", ")
    sizes = {name: int(size) for name, size in (each.split(" ") for each in rest)}
    return AttentionKind("", causal=first == "causal", **sizes)


def describe_slice(kind: AttentionKind, first: int) -> str:
    """A kind whose queries are some of those from position `first` on: which ones, the rank decides."""
    return f"{kind.describe()}{_SLICE}{first}"


def read_slice(text: str) -> tuple[AttentionKind, int | None]:
    """The kind that `describe` or `describe_slice` wrote, and the position; None where queries are not a slice."""
    kind, _, first = text.partition(_SLICE)
    return read_kind(kind), int(first) if first else None
