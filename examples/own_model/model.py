"""Starcoder 2 without biases: attention and RoPE as the package has them, LayerNorm and GELU as it has not.

monograph train examples.own_model.recipe:starcoder2_debugmodel
monograph check-model examples.own_model.model:Starcoder2 --ranks 2
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import monograph as mg
from examples.own_model import hf as names
from examples.own_model.config import Starcoder2Config
from monograph.parts import CAUSAL, Attention, Embedding, Linear, ResidualSpec, build_segments


class GeluFeedForward(nn.Module):
    """c_proj(gelu(c_fc x))."""

    def __init__(self, dim: int, hidden_dim: int, *, out_std: float) -> None:
        super().__init__()
        self.c_fc = Linear(dim, hidden_dim, init_std=0.02)
        self.c_proj = Linear(hidden_dim, dim, init_std=out_std)

    def plan_parallel(self) -> mg.ParallelPlan:
        """Every tensor-parallel rank has some of the hidden channels."""
        return mg.plan_column_row_pair(["c_fc.weight"], ["c_proj.weight"])

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Starcoder2Block(nn.Module):
    """Attention, then the feed-forward layer, each reading a norm of the stream and adding to it."""

    def __init__(self, config: Starcoder2Config, residual: ResidualSpec) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.attention: Attention = config.attention.build(residual=residual, rope=config.rope)
        self.norm_2 = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.feed_forward = GeluFeedForward(config.dim, config.hidden_dim, out_std=residual.out_std)

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, segments: Tensor | None = None) -> Tensor:
        h = h + self.attention(self.norm_1(h), (cos, sin), segments)
        return h + self.feed_forward(self.norm_2(h))


class Starcoder2Head(nn.Module):
    """The last norm, the projection to the vocabulary, and the loss."""

    def __init__(self, config: Starcoder2Config) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.dim, eps=config.norm_eps)
        self.output = Linear(config.dim, config.vocab_size, init_std=0.02)
        self.loss = config.loss.build()

    def plan_parallel(self) -> mg.ParallelPlan:
        """The vocabulary is spread over ranks, and so is the loss."""
        return mg.plan_vocab_head(norm="norm", output="output.weight")

    def forward(self, h: Tensor, labels: Tensor | None = None, targets: Tensor | None = None) -> Tensor:
        h = self.norm(h)
        return self.output(h) if labels is None else self.loss(h, self.output.weight, labels, targets)


class Starcoder2(mg.Model):
    """The model: an embedding, blocks, and a head with the loss."""

    Config = Starcoder2Config
    hf = names

    def __init__(self, config: Starcoder2Config) -> None:
        super().__init__()
        out_std = 0.02 / (2 * config.n_layers) ** 0.5
        residual = ResidualSpec(config.dim, config.norm_eps, 0.02, out_std)
        self.embedding = Embedding(config.vocab_size, config.dim, init_std=0.02)
        self.layers = nn.ModuleList(Starcoder2Block(config, residual) for _ in range(config.n_layers))
        self.head = Starcoder2Head(config)
        self.rope = config.rope.build(dim=config.attention.find_head_dim(config.dim))

    def units(self) -> list[mg.Unit]:
        return [mg.Unit("embedding"), *mg.blocks_of("layers", self.layers), mg.Unit("head")]

    def parallel_plan(self) -> mg.ParallelPlan:
        return mg.plan_vocab_embedding("embedding") + super().parallel_plan()

    def step_inputs(self, batch: Mapping[str, Tensor], part: mg.SequencePart) -> dict[str, Tensor]:
        """With context parallelism: the positions of this rank's tokens, and the keys they see."""
        inputs = super().step_inputs(batch, part)
        if not part.is_whole:
            size, length = batch["tokens"].shape
            inputs["positions"] = part.take(torch.arange(length).expand(size, length), 1)
            segments = build_segments(None, CAUSAL, part, batch=size, length=length)
            inputs |= {} if segments is None else {"segments": segments}
        return inputs

    def forward(
        self, tokens: Tensor, labels: Tensor, targets: Tensor, *, call=mg.call_module, **shared: Tensor
    ) -> mg.StepOutput:
        return mg.StepOutput.of(call(self.head, self.run(tokens, call, **shared), labels, targets))

    def predict(self, tokens: Tensor, *, call=mg.call_module) -> Tensor:
        return call(self.head, self.run(tokens, call))

    def run(
        self, tokens: Tensor, call: mg.UnitCall, positions: Tensor | None = None, segments: Tensor | None = None
    ) -> Tensor:
        """The stream after the last block."""
        cos, sin = self.rope(tokens.shape[1], positions)
        h = call(self.embedding, tokens)
        for layer in self.layers:
            h = call(layer, h, cos, sin, segments)
        return h
