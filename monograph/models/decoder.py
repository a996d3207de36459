"""The decoder-only transformer that all families share: an embedding, blocks, a head with the loss.

These three kinds of units are what a trainer handles one at a time (casting, and later gathering, the parameters of a
unit just before it runs): `forward` runs each of them through `call`.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from monograph.config.configurable import Configurable
from monograph.errors import ConfigError
from monograph.kernels.rope import Rotation
from monograph.models.attention import build_document_mask
from monograph.models.config import DecoderConfig, LossConfig, ResidualSpec
from monograph.models.feed_forward import FeedForward
from monograph.models.linear import Embedding, Linear
from monograph.models.load_balance import LoadBalance, RouterStats, sum_weighted
from monograph.models.moe import Moe
from monograph.models.norm import RMSNorm


class DecoderOutput(NamedTuple):
    """What one forward returns."""

    value: Tensor
    """The loss (scalar, fp32) when labels were given, logits otherwise."""
    objective: Tensor
    """What training differentiates: the loss plus weighted auxiliary losses; `value` itself where there are none."""
    metrics: dict[str, Tensor]
    """Sums over this call's tokens, to be added up over micro-batches and ranks. With experts: `expert_load`, int64
    [MoE layers, experts]; the share of every auxiliary loss, fp32 [MoE layers]; their weighted sum `aux_loss`."""


def call_module(module: nn.Module, *args: Any) -> Any:
    """The plain way to run a unit."""
    return module(*args)


def call_function(function: Callable[..., Any], *args: Any) -> Any:
    """The plain way to run a block's work; activation checkpointing puts another in its place."""
    return function(*args)


class Block(nn.Module):
    """Attention, then a feed-forward layer or experts, each reading a norm of the stream and adding to it."""

    def __init__(self, residual: ResidualSpec, *, attention: nn.Module, feed_forward: FeedForward | Moe) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(residual.dim, residual.norm_eps, residual.kernels)
        self.attention = attention
        self.ffn_norm = RMSNorm(residual.dim, residual.norm_eps, residual.kernels)
        self.run: Callable[..., Any] = call_function
        self.moe = feed_forward if isinstance(feed_forward, Moe) else None
        self.feed_forward = None if isinstance(feed_forward, Moe) else feed_forward

    def forward(
        self, h: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, RouterStats | None]:
        """The residual stream [batch, sequence, dim] after this block, and its router's statistics (None if dense)."""
        return self.run(self.compute, h, cos, sin, mask)

    def compute(self, h: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, RouterStats | None]:
        """The block's work, which may run once more in backward instead of being remembered."""
        rotation: Rotation = (cos, sin)
        h = h + self.attention(self.attention_norm(h), rotation, mask)
        if self.feed_forward is not None:
            return h + self.feed_forward(self.ffn_norm(h)), None
        assert self.moe is not None
        out, stats = self.moe(self.ffn_norm(h))
        return h + out, stats


class Head(nn.Module):
    """The last norm and the projection to the vocabulary; with labels, the loss instead of logits."""

    def __init__(self, residual: ResidualSpec, *, vocab_size: int, loss: LossConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(residual.dim, residual.norm_eps, residual.kernels)
        self.output = Linear(residual.dim, vocab_size, init_std=residual.init_std)
        self.loss = loss.build(kernels=residual.kernels)

    def forward(self, h: Tensor, labels: Tensor | None = None, valid_tokens: Tensor | None = None) -> Tensor:
        h = self.norm(h)
        if labels is None:
            return self.output(h)
        return self.loss(h, self.output.weight, labels, valid_tokens)


class Decoder(nn.Module, Configurable):
    """A language model. Families say which blocks it is made of, and how many channels of a head are rotated."""

    Config: ClassVar[Any] = DecoderConfig
    embedding: nn.Module
    """An Embedding, or what parallelism puts in its place: token ids in, the stream out."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        residual = config.residual()
        self.embedding = Embedding(config.vocab_size, config.dim, init_std=config.init_std)
        self.layers = nn.ModuleList(self.build_block(residual, layer) for layer in range(config.n_layers))
        self.head = Head(residual, vocab_size=config.vocab_size, loss=config.loss)
        self.rope = config.rope.build(dim=self.find_rotated_dim())
        self.load_balance = build_load_balance(config)
        self.reset()

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        """The block with this number."""
        raise NotImplementedError

    def blocks(self) -> list[Block]:
        """The blocks in order."""
        return [block for block in self.layers if isinstance(block, Block)]

    def find_rotated_dim(self) -> int:
        """Channels of a head that get RoPE."""
        raise NotImplementedError

    @property
    def batch_names(self) -> tuple[str, ...]:
        """What it reads of a batch: with a causal mask a sequence is one text, whatever was packed into it."""
        names = ("tokens", "labels")
        return names if self.config.mask == "causal" else (*names, "positions", "documents")

    @property
    def normalizers(self) -> tuple[str, ...]:
        """Counts over the whole update that `forward` divides by, as arguments of it."""
        return ("valid_tokens", "sequences") if self.load_balance is not None else ("valid_tokens",)

    def reset(self) -> None:
        """Tie the output to the embedding (moving a model between devices may have separated them)."""
        if self.config.tied_embeddings:
            self.head.output.weight = self.embedding.get_parameter("weight")

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor | None = None,
        valid_tokens: Tensor | None = None,
        *,
        sequences: Tensor | None = None,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        call: Callable[..., Any] = call_module,
    ) -> DecoderOutput:
        """Loss (with labels) or logits of int64 tokens [batch, sequence].

        positions: of each token, counted from 0 when not given; they restart with every packed document.
        documents: the number of each token's document, needed by the document mask and unused by the causal one.
        valid_tokens: what the summed loss is divided by; this call's valid labels when not given.
        sequences: what sums of auxiliary losses over sequences are divided by; this call's when not given.
        """
        cos, sin = self.rope(tokens.shape[1], positions)
        mask = self.build_mask(documents)
        h = call(self.embedding, tokens)
        stats: list[RouterStats] = []
        for block in self.layers:
            h, found = call(block, h, cos, sin, mask)
            if found is not None:
                stats.append(found)
        value = call(self.head, h, labels, valid_tokens)
        metrics = {"expert_load": torch.stack([each.load for each in stats])} if stats else {}
        if self.load_balance is None or labels is None or not torch.is_grad_enabled():
            return DecoderOutput(value, value, metrics)
        if sequences is None:
            sequences = torch.tensor(tokens.shape[0], device=tokens.device)
        losses = self.load_balance(stats, tokens.shape[1], sequences)
        total = sum_weighted(losses, self.load_balance.coefficients)
        metrics |= {name: loss.detach() for name, loss in losses.items()} | {"aux_loss": total.detach()}
        return DecoderOutput(value, value + total, metrics)

    def build_mask(self, documents: Tensor | None) -> Tensor | None:
        """The mask of this forward, shared by all blocks; None is the causal one, which kernels know by themselves."""
        if self.config.mask == "causal":
            return None
        if documents is None:
            raise ConfigError(
                "model.mask is document but the batch has no documents",
                why="the mask is made of the number of each token's document",
                do="pass documents, or --model.mask causal",
            )
        return build_document_mask(documents)


def build_load_balance(config: DecoderConfig) -> LoadBalance | None:
    """The auxiliary losses of a model with experts; None where no loss is on."""
    moe = config.find_moe()
    if moe is None or not moe.balance.is_on:
        return None
    return moe.balance.build(router=moe.router, n_experts=moe.n_experts)
