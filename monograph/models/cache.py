"""Keys and values of tokens that were read already, so that the next token costs one token and not the whole text.

Texts of different lengths stand at the end of their rows: the tokens before them are padding, which nothing sees. So
every row has its next token at the same index, and its positions count from its own first token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from monograph.models.attention_kind import AttentionKind


class LayerCache:
    """What one layer keeps of every token: tensors [batch, ..., tokens, channels], made when the first ones arrive."""

    def __init__(self, whole: "DecoderCache", kind: AttentionKind) -> None:
        self.whole, self.kind = whole, kind
        self._parts: list[Tensor] = []

    @property
    def is_empty(self) -> bool:
        """Whether no token was read before those of this call."""
        return self.whole.length == 0

    def append(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Keep what this call's tokens have; returns the same of all tokens so far."""
        start, stop = self.whole.length, self.whole.length + parts[0].shape[-2]
        if not self._parts:
            sizes = [(*part.shape[:-2], self.whole.capacity, part.shape[-1]) for part in parts]
            self._parts = [part.new_empty(size) for part, size in zip(parts, sizes, strict=True)]
        for kept, part in zip(self._parts, parts, strict=True):
            kept[..., start:stop, :] = part
        return tuple(kept[..., :stop, :] for kept in self._parts)

    def mask(self, queries: int) -> Tensor | None:
        """Which of all tokens this call's see: bool [batch, 1, queries, tokens]; None where they see all."""
        return self.whole.mask(self.kind, queries)


class DecoderCache:
    """The cache of all layers. `length` tokens of each row were read, of which the first `padding` are none."""

    def __init__(
        self, kinds: Sequence[AttentionKind], *, batch: int, capacity: int, device: torch.device, padding: Sequence[int]
    ) -> None:
        self.batch, self.capacity, self.device, self.length = batch, capacity, device, 0
        self.padding = list(padding) if any(padding) else []
        self._padding = torch.tensor(list(padding) or [0] * batch, device=device)
        self.layers = [LayerCache(self, kind) for kind in kinds]
        self._masks: dict[tuple[AttentionKind, int], Tensor | None] = {}

    def advance(self, tokens: int) -> None:
        """So many tokens were read by all layers."""
        self.length += tokens
        self._masks.clear()

    def positions(self, tokens: int) -> Tensor:
        """Where the next tokens stand in their texts: int64 [batch, tokens]; padding stands at 0."""
        index = torch.arange(self.length, self.length + tokens, device=self.device)
        return (index.unsqueeze(0) - self._padding.unsqueeze(1)).clamp_(min=0)

    def documents(self, tokens: int) -> Tensor | None:
        """Padding and text as two documents, in host memory: int64 [batch, tokens]; None without padding."""
        if not self.padding:
            return None
        return (torch.arange(tokens).unsqueeze(0) >= torch.tensor(self.padding).unsqueeze(1)).long()

    def mask(self, kind: AttentionKind, queries: int) -> Tensor | None:
        """What the next tokens see, made once for all layers of a kind."""
        if (kind, queries) not in self._masks:
            self._masks[kind, queries] = self._build_mask(kind, queries)
        return self._masks[kind, queries]

    def _build_mask(self, kind: AttentionKind, queries: int) -> Tensor | None:
        if queries == 1 and kind.is_plain and not self.padding:
            return None
        keys = self.length + queries
        first = self._padding[:, None, None]
        q = torch.arange(self.length, keys, device=self.device)[None, :, None]
        k = torch.arange(keys, device=self.device)[None, None, :]
        seen = (k <= q) & (k >= first)
        if kind.window:
            seen = seen & (k > q - kind.window)
        if kind.chunk:
            seen = seen & ((k - first) // kind.chunk == (q - first) // kind.chunk)
        return seen.unsqueeze(1)
