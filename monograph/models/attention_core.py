"""The core that all attention modules share: what computes attention from queries, keys and values."""

from typing import Any

from torch import Tensor, nn

from monograph.annotate import annotate_attention
from monograph.kernels.attention import AttentionKernel, attention
from monograph.kernels.cached_attention import cached_attention
from monograph.models.attention_kind import AttentionKind
from monograph.models.cache import LayerCache
from monograph.models.parallel_plan import ModuleRule, ParallelForm, ParallelPlan


class AttentionCore(nn.Module):
    """Attention of queries over keys and values; parallelism puts another in its place.

    With a `cap`, scores become cap * tanh(scores / cap) before the softmax.
    """

    def __init__(
        self, kind: AttentionKind, *, scale: float, kernel: AttentionKernel = "auto", cap: float = 0.0
    ) -> None:
        super().__init__()
        self.kind, self.scale, self.kernel, self.cap = kind, scale, kernel, cap

    def plan_parallel(self) -> ParallelPlan:
        """With context parallelism every rank has a part of each sequence."""
        return ParallelPlan(modules=(ModuleRule(pattern="", form=ParallelForm.SHARED_SEQUENCES),))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Tensor | None = None,
        sinks: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """The output [batch, sequence, heads, value channels] for q, k and v, all [batch, sequence, heads, channels].

        `segments` is the table of the kind (models/segments.py); without one, a sequence is one text. With a cache,
        these tokens follow those that it has, and see them.
        """
        if cache is not None:
            keys, values = cache.append(k.transpose(1, 2), v.transpose(1, 2))
            if not cache.is_empty:
                return cached_attention(q, keys, values, cache.mask(q.shape[1]), sinks, scale=self.scale, cap=self.cap)
        table = None if segments is None else segments[:, 0]
        kind = self.kind
        rule: dict[str, Any] = {"scale": self.scale, "causal": kind.causal, "window": kind.window, "cap": self.cap}
        with annotate_attention(kind.describe()):
            return attention(q, k, v, table, sinks, kernel=self.kernel, **rule)
