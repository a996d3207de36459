"""Qwen3: grouped-query attention with normalised heads; feed-forward layers, or experts in every block."""

from typing import ClassVar

from monograph.models.config import ResidualSpec
from monograph.models.decoder import Block, Decoder
from monograph.models.hf_map import HfFamily
from monograph.models.qwen3 import hf as hf_names
from monograph.models.qwen3.config import Qwen3Config


class Qwen3(Decoder):
    """A Qwen3 model."""

    Config = Qwen3Config
    config: Qwen3Config
    hf: ClassVar[HfFamily | None] = hf_names

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        config = self.config
        attention = config.attention.build(residual=residual, rope=config.rope, kind=self.kinds[layer])
        feed_forward = config.moe if config.moe.n_experts else config.feed_forward
        return Block(residual, attention=attention, feed_forward=feed_forward.build(residual=residual))

    def find_rotated_dim(self) -> int:
        return self.config.attention.find_head_dim(self.config.dim)
