"""Llama 4: chunks and RoPE in most layers, whole texts without RoPE in some; experts in all layers or in some."""

from typing import ClassVar

from torch import nn

from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.config import ResidualSpec
from monograph.models.decoder import Block, Decoder
from monograph.models.hf_map import HfFamily
from monograph.models.llama4 import hf as hf_names
from monograph.models.llama4.attention import Temperature
from monograph.models.llama4.config import Llama4Config


class Llama4(Decoder):
    """The text part of a Llama 4 model."""

    Config = Llama4Config
    config: Llama4Config
    hf: ClassVar[HfFamily | None] = hf_names

    def __init__(self, config: Llama4Config) -> None:
        super().__init__(config)
        self.temperature = Temperature(config.attention, max_seq_len=config.rope.max_seq_len)

    def find_attention_kind(self, layer: int) -> AttentionKind:
        return AttentionKind("chunked", chunk=self.config.chunk) if self.config.has_rope(layer) else CAUSAL

    def find_position_table(self, kind: AttentionKind) -> nn.Module:
        return self.rope if kind.chunk else self.temperature

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        config = self.config
        context = {"rope": config.rope, "kind": self.kinds[layer], "has_rope": config.has_rope(layer)}
        feed_forward = config.moe if config.has_experts(layer) else config.feed_forward
        attention = config.attention.build(residual=residual, **context)
        return Block(residual, attention=attention, feed_forward=feed_forward.build(residual=residual))

    def find_rotated_dim(self) -> int:
        return self.config.attention.find_head_dim(self.config.dim)
