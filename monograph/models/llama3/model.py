"""Llama 3: every block is grouped-query attention and a feed-forward layer."""

from typing import ClassVar

from monograph.models.config import ResidualSpec
from monograph.models.decoder import Block, Decoder
from monograph.models.hf_map import HfFamily
from monograph.models.llama3 import hf as hf_names
from monograph.models.llama3.config import Llama3Config


class Llama3(Decoder):
    """A Llama 3 model."""

    Config = Llama3Config
    config: Llama3Config
    hf: ClassVar[HfFamily | None] = hf_names

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        config = self.config
        attention = config.attention.build(residual=residual, rope=config.rope, kind=self.kinds[layer])
        return Block(residual, attention=attention, feed_forward=config.feed_forward.build(residual=residual))

    def find_rotated_dim(self) -> int:
        return self.config.attention.find_head_dim(self.config.dim)
