"""The parts of Gemma 2 that the package does not have: a feed-forward layer with GELU, a block with four norms."""

import torch.nn.functional as F
from torch import Tensor, nn

from monograph.models.cache import LayerCache
from monograph.models.config import ResidualSpec
from monograph.models.decoder import Block
from monograph.models.feed_forward import FeedForward
from monograph.models.flex_attention import FlexInputs
from monograph.models.gemma2.config import GegluConfig
from monograph.models.load_balance import RouterStats
from monograph.models.norm import build_norm


class GegluFeedForward(FeedForward):
    """w2(gelu(w1 x) * w3 x), with the GELU that is computed by tanh."""

    Config = GegluConfig

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.gelu(self.w1(x), approximate="tanh") * self.w3(x))


class GemmaBlock(Block):
    """Attention, then a feed-forward layer, each between two norms: of what it reads, and of what it adds."""

    feed_forward: FeedForward

    def __init__(self, residual: ResidualSpec, *, attention: nn.Module, feed_forward: FeedForward) -> None:
        super().__init__(residual, attention=attention, feed_forward=feed_forward)
        self.attention_out_norm = build_norm(residual)
        self.ffn_out_norm = build_norm(residual)

    def forward(
        self,
        h: Tensor,
        cos: Tensor,
        sin: Tensor,
        segments: Tensor | FlexInputs | None = None,
        seed: Tensor | None = None,
        token_index: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, RouterStats | None]:
        """The residual stream [batch, sequence, dim] after this block; there is no router."""
        more = () if cache is None else (cache,)
        out = self.attention_out_norm(self.attention(self.attention_norm(h), (cos, sin), segments, *more))
        h = h + (out if self.attention_dropout is None else self.attention_dropout(out, seed, token_index))
        out = self.ffn_out_norm(self.feed_forward(self.ffn_norm(h)))
        return h + (out if self.ffn_dropout is None else self.ffn_dropout(out, seed, token_index)), None
