"""How many scores an attention computes: pairs of a query and a key.

Operations are counted with all keys in reach of a query, the convention of most published figures and of MFU
(models/flops.py): the whole sequence, a window or a chunk. Time is estimated from the pairs that the mask leaves.
Documents are data, unknown here, so that both are upper bounds where several are packed into a sequence; so is a mask
function that a user wrote.
"""

from dataclasses import dataclass

from torch.fx import Node

from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import name_of, value_of
from monograph.graph.tags import find_tag
from monograph.kernels.attention import KERNELS
from monograph.models.attention_kind import AttentionKind, read_slice

_FULL = AttentionKind("full", causal=False)
_QUERIES = {
    "attention": (0, 1),
    "attention_backward": (1, 1),
    "flex_attention": (0, 2),
    "flex_attention_backward": (0, 2),
}
"""Attention ops -> the index of their queries among their arguments (keys and values follow), and the sequence dim."""


@dataclass(frozen=True)
class AttentionScores:
    """What an attention node multiplies."""

    keys: int
    first: int
    """Queries stand anywhere from this key on: all of them do, or a slice that is another one on every rank."""
    head_dim: float
    """The mean of the channels of a key and of a value."""
    kind: AttentionKind

    @property
    def reach(self) -> int:
        """Keys that a query may see."""
        return min(each for each in (self.keys, self.kind.window, self.kind.chunk) if each)

    @property
    def seen_share(self) -> float:
        """The part of all pairs of a query and a key in its reach that the mask leaves."""
        return min(1.0, find_visible_share(self.first, self.keys, self.kind) * self.keys / self.reach)


def find_scores(node: Node, sizes: LikelySizes) -> AttentionScores | None:
    """The scores of an attention node; None of any other."""
    if name_of(node) not in _QUERIES:
        return None
    index, dim = _QUERIES[name_of(node)]
    query, key, value = (value_of(each) for each in node.args[index : index + 3])  # type: ignore[arg-type]
    width = (query.shape[-1] + value.shape[-1]) / 2
    queries, keys = sizes.shape(query)[dim], sizes.shape(key)[dim]
    kind, first = find_kind(node)
    return AttentionScores(keys, max(0, keys - queries) if first is None else first, width, kind)


def is_by_cudnn(node: Node) -> bool:
    """Whether cuDNN's kernel computes an attention of bf16 on a GPU, as `choose_kernel` of attention_on_gpu.py decides.

    Tables, windows and caps are for our Triton kernels; so are gradients, unless they may vary from run to run.
    """
    name = name_of(node)
    if name not in ("attention", "attention_backward"):
        return False
    index, _ = _QUERIES[name]
    *_, window, number, cap = node.args
    kernel, is_plain = KERNELS[int(number)], node.args[index + 3] is None and not window and not cap  # type: ignore[arg-type]
    is_kept = kernel == "auto" and name == "attention"
    return is_plain and (is_kept or kernel in ("cudnn", "fastest"))


def find_kind(node: Node) -> tuple[AttentionKind, int | None]:
    """What queries see, and where they begin if they are a slice: without one, the last query stands at the last key.

    Our op says so itself, but for chunks and slices, which are part of its table; all else is in the tag.
    """
    tag = find_tag(node)
    tagged, first = read_slice(tag.attention) if tag is not None and tag.attention else (None, None)
    if not name_of(node).startswith("attention"):
        return tagged or _FULL, first
    is_causal, window = node.args[-4:-2]
    chunk = tagged.chunk if tagged is not None else 0
    return AttentionKind("", causal=bool(is_causal), window=int(window), chunk=chunk), first  # type: ignore[arg-type]


def find_visible_share(first: int, keys: int, kind: AttentionKind) -> float:
    """The share of all pairs that a mask leaves, one document a sequence; queries stand anywhere from `first` on.

    Those of a sequence in chunks that are not all there are taken to stand anywhere in their chunks.
    """
    if kind.chunk and kind.chunk < keys:
        known = kind.chunk if first else keys  # of some queries only the mean is known
        return kind.count_keys(known)[1] / keys
    if not kind.causal:
        return 1.0
    seen = keys * keys - first * first  # twice the area below the diagonal
    if kind.window and kind.window < keys:
        outside, before = keys - kind.window, max(0, first - kind.window)
        seen -= outside * outside - before * before
    return min(1.0, max(seen, 1) / (2 * (keys - first) * keys))
