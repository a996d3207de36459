"""Grouped-query attention of Llama 4: with RoPE and norms without weights, or with a temperature instead."""

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from monograph.kernels.rope import Rotation, apply_rope
from monograph.models.attention import Attention
from monograph.models.config import ResidualSpec
from monograph.models.llama4.config import Llama4AttentionConfig


class Llama4Attention(Attention):
    """A layer with RoPE gets cosines and sines for its rotation, one without gets its queries' temperatures, twice."""

    Config: ClassVar[Any] = Llama4AttentionConfig
    config: Llama4AttentionConfig

    def __init__(
        self, config: Llama4AttentionConfig, *, residual: ResidualSpec, has_rope: bool, **context: Any
    ) -> None:
        plain = config.replace(qk_norm=False)
        super().__init__(plain, residual=residual, **context)
        self.config, self.has_rope, self.norm_eps = config, has_rope, residual.norm_eps

    def place(self, q: Tensor, k: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        if not self.has_rope:
            return (q * rotation[0]).to(q.dtype), k  # the product in fp32, rounded once
        q, k = (apply_rope(x, rotation, interleaved=self.interleaved, kernels=self.kernels) for x in (q, k))
        if self.config.qk_norm:
            q, k = (F.rms_norm(x, (self.head_dim,), eps=self.norm_eps) for x in (q, k))
        return q, k


class Temperature(nn.Module):
    """What queries are multiplied with, by position: attention over a long text stays as sharp as over a short one."""

    table: Tensor

    def __init__(self, config: Llama4AttentionConfig, *, max_seq_len: int) -> None:
        super().__init__()
        self.config = config
        size = max_seq_len if config.temperature_tuning else 1
        self.register_buffer("table", torch.empty(size, dtype=torch.float32), persistent=False)
        self.reset()

    def reset(self) -> None:
        """Fill the table, on the CPU in fp64; one entry of 1 without tuning."""
        if self.table.is_meta:
            return
        positions = torch.arange(1, self.table.shape[0] + 1, dtype=torch.float64, device="cpu")
        steps = (positions / self.config.floor_scale).floor()
        tuned = steps.log1p() * self.config.attn_scale + 1
        with torch.no_grad():
            self.table.copy_(tuned if self.config.temperature_tuning else torch.ones_like(tuned))

    def forward(self, seq_len: int, positions: Tensor | None = None) -> Rotation:
        """The temperatures of `positions` [batch, sequence], or of 0, 1, 2, ...: [batch or 1, sequence or 1, 1, 1]."""
        if not self.config.temperature_tuning:
            found = self.table.view(1, 1, 1, 1)
        elif positions is None:
            found = self.table[None, :seq_len, None, None]
        else:
            found = self.table[positions].unsqueeze(-1).unsqueeze(-1)
        return found, found
