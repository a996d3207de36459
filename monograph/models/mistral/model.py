"""Mistral: every block is grouped-query attention, in a window if the config has one, and a feed-forward layer."""

from typing import ClassVar

from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.config import ResidualSpec
from monograph.models.decoder import Block, Decoder
from monograph.models.hf_map import HfFamily
from monograph.models.mistral import hf as hf_names
from monograph.models.mistral.config import MistralConfig


class Mistral(Decoder):
    """A Mistral model."""

    Config = MistralConfig
    config: MistralConfig
    hf: ClassVar[HfFamily | None] = hf_names

    def find_attention_kind(self, layer: int) -> AttentionKind:
        return AttentionKind("window", window=self.config.window) if self.config.window else CAUSAL

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        config = self.config
        attention = config.attention.build(residual=residual, rope=config.rope, kind=self.kinds[layer])
        return Block(residual, attention=attention, feed_forward=config.feed_forward.build(residual=residual))

    def find_rotated_dim(self) -> int:
        return self.config.attention.find_head_dim(self.config.dim)
