"""Qwen2.5: every block is grouped-query attention with biases and a feed-forward layer."""

from typing import ClassVar

from monograph.models.config import ResidualSpec
from monograph.models.decoder import Block, Decoder
from monograph.models.hf_map import HfFamily
from monograph.models.qwen2_5 import hf as hf_names
from monograph.models.qwen2_5.config import Qwen2Config


class Qwen2(Decoder):
    """A Qwen2.5 model."""

    Config = Qwen2Config
    config: Qwen2Config
    hf: ClassVar[HfFamily | None] = hf_names

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        config = self.config
        attention = config.attention.build(residual=residual, rope=config.rope, kind=self.kinds[layer])
        return Block(residual, attention=attention, feed_forward=config.feed_forward.build(residual=residual))

    def find_rotated_dim(self) -> int:
        return self.config.attention.find_head_dim(self.config.dim)
