"""The settings of the model. They load without torch, so that wrong input is answered at once."""

from dataclasses import dataclass, field
from typing import ClassVar

from monograph.models.config import AttentionConfig, LossConfig, RopeConfig
from monograph.models.model_config import ModelConfig


@dataclass(kw_only=True, slots=True)
class Starcoder2Config(ModelConfig):
    """The sizes of a model; every field is a flag: --model.dim 256."""

    owner: ClassVar[str] = "examples.own_model.model:Starcoder2"
    vocab_size: int = 512
    """Rows of the embedding."""
    dim: int = 128
    """Width of the residual stream."""
    n_layers: int = 4
    """Blocks."""
    hidden_dim: int = 512
    """Width of the feed-forward layer."""
    norm_eps: float = 1e-5
    """Added to the variance in every norm."""
    attention: AttentionConfig = field(default_factory=lambda: AttentionConfig(n_heads=4, n_kv_heads=2))
    """Heads."""
    rope: RopeConfig = field(default_factory=lambda: RopeConfig(max_seq_len=2048))
    """Rotary positions."""
    loss: LossConfig = field(default_factory=LossConfig)
    """The training loss."""
