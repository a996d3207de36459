"""Gemma 3: Gemma 2 with norms of queries and keys, and with two tables of rotary positions."""

from typing import ClassVar

from torch import nn

from monograph.models.attention_kind import AttentionKind
from monograph.models.gemma2.model import Gemma2
from monograph.models.gemma3 import hf as hf_names
from monograph.models.gemma3.config import Gemma3Config
from monograph.models.hf_map import HfFamily


class Gemma3(Gemma2):
    """The text part of a Gemma 3 model."""

    Config = Gemma3Config
    config: Gemma3Config
    hf: ClassVar[HfFamily | None] = hf_names

    def __init__(self, config: Gemma3Config) -> None:
        super().__init__(config)
        self.window_rope = config.find_window_rope().build(dim=self.find_rotated_dim())

    def find_position_table(self, kind: AttentionKind) -> nn.Module:
        return self.window_rope if kind.window else self.rope
