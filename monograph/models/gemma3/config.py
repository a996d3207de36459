"""The Gemma 3 family (text): windowed and full layers, each kind with its own RoPE; norms of queries and keys.

Loads without torch.
"""

from dataclasses import dataclass
from typing import ClassVar

from monograph.config.ranges import FP32_MAX, check_range
from monograph.models.config import RopeConfig
from monograph.models.gemma2.config import Gemma2Config, GemmaAttentionConfig


@dataclass(kw_only=True, slots=True)
class Gemma3AttentionConfig(GemmaAttentionConfig):
    """Grouped-query attention whose queries and keys are normalised."""

    qk_norm: bool = True
    """Normalise every query and key head before rotating it."""


@dataclass(kw_only=True, slots=True)
class Gemma3Config(Gemma2Config):
    """The text part of a Gemma 3 model; `rope` is that of the full layers."""

    owner: ClassVar[str] = "monograph.models.gemma3.model:Gemma3"
    full_interval: ClassVar[int] = 6
    window_theta: float = 10000.0
    """Base of the wavelengths in windowed layers, which are never stretched."""
    attention: Gemma3AttentionConfig
    """The attention of every block."""

    def check(self) -> None:
        Gemma2Config.check(self)
        check_range(self, "window_theta", 1, FP32_MAX, why="wavelengths are powers of it")

    def find_window_rope(self) -> RopeConfig:
        """Rotary positions of windowed layers."""
        return RopeConfig(max_seq_len=self.rope.max_seq_len, theta=self.window_theta, layout=self.rope.layout)
