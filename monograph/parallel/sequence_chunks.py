"""Attention in blocks that run chunk by chunk along the sequence: chunk j sees the keys of chunks 0 to j.

The keys and values of earlier chunks are handed on from call to call, and gradients flow back to them. What the queries
of a chunk see of packed documents is cut out of the table of whole sequences.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from monograph.errors import ConfigError
from monograph.models.attention_core import AttentionCore
from monograph.models.flex_attention import FlexCore
from monograph.parallel.replaced_forward import replaced_forward

SEQUENCE = 1


class EarlierKeys:
    """Calls attention with the keys of this chunk and of those before it."""

    def __init__(self, core: AttentionCore) -> None:
        self.core = core
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None = None, sinks: Tensor | None = None, *_: None
    ) -> Tensor:
        length = q.shape[SEQUENCE]
        start = len(self.keys) * length
        self.keys.append(k)
        self.values.append(v)
        table = None if segments is None else cut_table(segments, start, length)
        out: Tensor = self.core(q, torch.cat(self.keys, SEQUENCE), torch.cat(self.values, SEQUENCE), table, sinks)
        return out


def cut_table(segments: Tensor, start: int, length: int) -> Tensor:
    """The table of the queries from `start` on, from that of whole sequences [batch, 1, 2, segments + 1].

    Segments that end before have no queries, and those that begin after have nothing at all.
    """
    queries, keys = segments.unbind(2)
    return torch.stack([(queries - start).clamp(0, length), keys.clamp(max=start + length)], 2)


@contextmanager
def earlier_keys_kept(root: nn.Module) -> Iterator[None]:
    """While this lasts, attention in a module sees the chunks that ran before."""
    with ExitStack() as stack:
        for module in root.modules():
            if isinstance(module, AttentionCore):
                stack.enter_context(replaced_forward(module, EarlierKeys(module)))
        yield


def check_sequence_chunks(path: str, root: nn.Module) -> None:
    """Refuse attention that sees tokens of later chunks."""
    for name, module in root.named_modules():
        if isinstance(module, FlexCore):
            raise ConfigError(
                f"{path} is to run chunk by chunk along the sequence, and {path}.{name} is FlexAttention",
                why="tables of blocks are made for whole sequences",
                do="--compile.expert_overlap.modules 'layers.*.moe', or --compile.expert_overlap.chunk_dim batch",
            )
        if isinstance(module, AttentionCore) and not module.kind.causal:
            raise ConfigError(
                f"{path} is to run chunk by chunk along the sequence, and {path}.{name} sees all tokens",
                why="later chunks have no keys yet",
                do="--compile.expert_overlap.chunk_dim batch",
            )
