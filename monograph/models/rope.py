"""RoPE with real numbers: each pair of channels is rotated by an angle that grows with the position.

Two layouts of the pairs exist in published weights, `half` (channel i with i + dim/2) and `interleaved` (2i with
2i + 1). Both are served, so that weights are used as they are published.
"""

import math

import torch
from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.kernels.rope import Rotation
from monograph.models.config import RopeConfig


class Rope(nn.Module, Configurable):
    """The table of cosines and sines for every position, made once; a forward looks its positions up once."""

    Config = RopeConfig
    cos: Tensor
    sin: Tensor

    def __init__(self, config: RopeConfig, *, dim: int) -> None:
        super().__init__()
        self.config, self.dim = config, dim
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(config.max_seq_len, dim // 2, dtype=torch.float32), persistent=False)
        self.reset()

    def reset(self) -> None:
        """Fill the table (on the CPU in fp64, so that it is the same on every device)."""
        if self.cos.is_meta:
            return
        positions = torch.arange(self.config.max_seq_len, dtype=torch.float64, device="cpu")
        angles = torch.outer(positions, compute_frequencies(self.config, self.dim))
        strength = compute_rotation_scale(self.config)
        with torch.no_grad():
            self.cos.copy_(angles.cos() * strength)
            self.sin.copy_(angles.sin() * strength)

    def forward(self, seq_len: int, positions: Tensor | None = None) -> Rotation:
        """The rotation of `positions` [batch, sequence], or of 0, 1, 2, ... when there are none."""
        if positions is None:
            return self.cos[None, :seq_len, None], self.sin[None, :seq_len, None]
        return self.cos[positions].unsqueeze(2), self.sin[positions].unsqueeze(2)


def compute_frequencies(config: RopeConfig, dim: int) -> Tensor:
    """Radians per position of each pair of channels, fastest first, fp64."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    frequencies = config.theta**-exponents
    if config.scaling == "linear":
        return frequencies / config.factor
    if config.scaling == "llama3":
        return scale_as_llama3(frequencies, config)
    if config.scaling == "yarn":
        return scale_as_yarn(frequencies, config, dim)
    return frequencies


def scale_as_llama3(frequencies: Tensor, config: RopeConfig) -> Tensor:
    """Stretch by wavelength: long waves fully, short ones not at all, a linear blend of frequencies between."""
    turns = config.original_max_seq_len * frequencies / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0, 1) if low < high else (turns >= low).to(turns.dtype)
    return frequencies * (keep + (1 - keep) / config.factor)


def scale_as_yarn(frequencies: Tensor, config: RopeConfig, dim: int) -> Tensor:
    """Stretch by channel: a linear blend between the channels that turn beta_fast and beta_slow times."""

    def channel(turns: float) -> float:
        wavelength = config.original_max_seq_len / turns
        return dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(config.theta))

    first, last = channel(config.beta_fast), channel(config.beta_slow)
    low = max(math.floor(first) if config.truncate else first, 0)
    high = min(math.ceil(last) if config.truncate else last, dim - 1)
    channels = torch.arange(dim // 2, dtype=torch.float64, device="cpu")
    # Clamping to the head's channels can put `high` below `low`; the published formula then divides by a negative.
    stretch = ((channels - low) / (high - low or 0.001)).clamp(0, 1)
    return frequencies * (1 - stretch + stretch / config.factor)


def compute_yarn_scale(factor: float, strength: float) -> float:
    """How much yarn sharpens attention for a context `factor` times as long."""
    return 1.0 + 0.1 * strength * math.log(factor) if factor > 1 else 1.0


def compute_rotation_scale(config: RopeConfig) -> float:
    """The factor on cosines and sines: yarn's correction of the rotated channels."""
    if config.scaling != "yarn":
        return 1.0
    return compute_yarn_scale(config.factor, config.mscale) / compute_yarn_scale(config.factor, config.mscale_all_dim)


def compute_score_scale(config: RopeConfig) -> float:
    """The factor on attention scores: yarn's correction of all channels, once for queries and once for keys."""
    return compute_yarn_scale(config.factor, config.mscale_all_dim) ** 2 if config.scaling == "yarn" else 1.0
