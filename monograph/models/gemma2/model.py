"""Gemma 2: attention in a window or full, GeGLU, four norms a block, a scaled embedding, capped logits."""

from typing import Any, ClassVar

from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.config import ResidualSpec
from monograph.models.decoder import Block, Decoder, Head
from monograph.models.gemma2 import hf as hf_names
from monograph.models.gemma2.config import Gemma2Config
from monograph.models.gemma2.layers import GemmaBlock
from monograph.models.hf_map import HfFamily
from monograph.models.linear import Embedding


class Gemma2(Decoder):
    """A Gemma 2 model."""

    Config: ClassVar[Any] = Gemma2Config
    config: Gemma2Config
    hf: ClassVar[HfFamily | None] = hf_names

    def build_embedding(self) -> Embedding:
        config = self.config
        return Embedding(config.vocab_size, config.dim, init_std=config.init_std, scale=config.dim**0.5)

    def build_head(self, residual: ResidualSpec) -> Head:
        config = self.config
        return Head(residual, vocab_size=config.vocab_size, loss=config.loss, logit_cap=config.logit_cap)

    def find_attention_kind(self, layer: int) -> AttentionKind:
        return AttentionKind("window", window=self.config.window) if self.config.is_windowed(layer) else CAUSAL

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        config = self.config
        attention = config.attention.build(residual=residual, rope=config.rope, kind=self.kinds[layer])
        return GemmaBlock(residual, attention=attention, feed_forward=config.feed_forward.build(residual=residual))

    def find_rotated_dim(self) -> int:
        return self.config.attention.find_head_dim(self.config.dim)
