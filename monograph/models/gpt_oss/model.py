"""gpt_oss: attention with sinks, in a window or full, and experts in every block."""

from typing import ClassVar

from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.config import ResidualSpec
from monograph.models.decoder import Block, Decoder
from monograph.models.gpt_oss import hf as hf_names
from monograph.models.gpt_oss.config import GptOssConfig
from monograph.models.hf_map import HfFamily


class GptOss(Decoder):
    """A gpt_oss model."""

    Config = GptOssConfig
    config: GptOssConfig
    hf: ClassVar[HfFamily | None] = hf_names

    def find_attention_kind(self, layer: int) -> AttentionKind:
        return AttentionKind("window", window=self.config.window) if self.config.is_windowed(layer) else CAUSAL

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        config = self.config
        attention = config.attention.build(residual=residual, rope=config.rope, kind=self.kinds[layer])
        return Block(residual, attention=attention, feed_forward=config.moe.build(residual=residual))

    def find_rotated_dim(self) -> int:
        return self.config.attention.find_head_dim(self.config.dim)
