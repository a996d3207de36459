"""DeepSeek-V3 (and V2): latent attention; the first blocks are dense, the others have experts."""

from typing import ClassVar

from monograph.models.config import ResidualSpec
from monograph.models.decoder import Block, Decoder
from monograph.models.deepseek_v3 import hf as hf_names
from monograph.models.deepseek_v3.config import DeepseekV3Config
from monograph.models.hf_map import HfFamily


class DeepseekV3(Decoder):
    """A DeepSeek-V3 model."""

    Config = DeepseekV3Config
    config: DeepseekV3Config
    hf: ClassVar[HfFamily | None] = hf_names

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        config = self.config
        attention = config.attention.build(residual=residual, rope=config.rope, kind=self.kinds[layer])
        feed_forward = config.feed_forward if layer < config.n_dense_layers else config.moe
        return Block(residual, attention=attention, feed_forward=feed_forward.build(residual=residual))

    def find_rotated_dim(self) -> int:
        return self.config.attention.qk_rope_head_dim
