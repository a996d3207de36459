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
from monograph.kernels.rotation import Rotation
from monograph.models.attention import build_document_mask
from monograph.models.config import DecoderConfig, LossConfig, Stream
from monograph.models.feed_forward import FeedForward
from monograph.models.linear import Embedding, Linear
from monograph.models.moe import Moe
from monograph.models.norm import RMSNorm


class DecoderOutput(NamedTuple):
    """What one forward returns."""

    value: Tensor
    """The loss (scalar, fp32) when labels were given, logits otherwise."""
    loads: Tensor | None
    """int64 [blocks with experts, experts]: tokens each expert got in this call; None without experts."""


def call_module(module: nn.Module, *args: Any) -> Any:
    """The plain way to run a unit."""
    return module(*args)


def call_function(function: Callable[..., Any], *args: Any) -> Any:
    """The plain way to run a block's work; activation checkpointing puts another in its place."""
    return function(*args)


class Block(nn.Module):
    """Attention, then a feed-forward layer or experts, each reading a norm of the stream and adding to it."""

    def __init__(self, stream: Stream, *, attention: nn.Module, feed_forward: FeedForward | Moe) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(stream.dim, stream.norm_eps, stream.kernels)
        self.attention = attention
        self.ffn_norm = RMSNorm(stream.dim, stream.norm_eps, stream.kernels)
        self.run: Callable[..., Any] = call_function
        self.moe = feed_forward if isinstance(feed_forward, Moe) else None
        self.feed_forward = None if isinstance(feed_forward, Moe) else feed_forward

    def forward(self, h: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The stream [batch, sequence, dim] after this block, and its experts' load (None in a dense block)."""
        return self.run(self.compute, h, cos, sin, mask)

    def compute(self, h: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The block's work, which may run once more in backward instead of being remembered."""
        rotation: Rotation = (cos, sin)
        h = h + self.attention(self.attention_norm(h), rotation, mask)
        if self.feed_forward is not None:
            return h + self.feed_forward(self.ffn_norm(h)), None
        assert self.moe is not None
        out, load = self.moe(self.ffn_norm(h))
        return h + out, load


class Head(nn.Module):
    """The last norm and the projection to the vocabulary; with labels, the loss instead of logits."""

    def __init__(self, stream: Stream, *, vocab_size: int, loss: LossConfig) -> None:
        super().__init__()
        self.norm = RMSNorm(stream.dim, stream.norm_eps, stream.kernels)
        self.output = Linear(stream.dim, vocab_size, init_std=stream.init_std)
        self.loss = loss.build(kernels=stream.kernels)

    def forward(self, h: Tensor, labels: Tensor | None = None, valid_tokens: Tensor | None = None) -> Tensor:
        h = self.norm(h)
        if labels is None:
            return self.output(h)
        return self.loss(h, self.output.weight, labels, valid_tokens)


class Decoder(nn.Module, Configurable):
    """A language model. Families say which blocks it is made of, and how many channels of a head are rotated."""

    Config: ClassVar[Any] = DecoderConfig
    expert_load: Tensor | None
    embedding: nn.Module
    """An Embedding, or what parallelism puts in its place: token ids in, the stream out."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        stream = config.stream()
        self.embedding = Embedding(config.vocab_size, config.dim, init_std=config.init_std)
        self.layers = nn.ModuleList(self.build_block(stream, layer) for layer in range(config.n_layers))
        self.head = Head(stream, vocab_size=config.vocab_size, loss=config.loss)
        self.rope = config.rope.build(dim=self.find_rotated_dim())
        moes = [module for module in self.modules() if isinstance(module, Moe)]
        load = torch.zeros(len(moes), moes[0].n_experts, dtype=torch.int64) if moes else None
        self.register_buffer("expert_load", load, persistent=False)
        self.reset()

    def build_block(self, stream: Stream, layer: int) -> Block:
        """The block with this number."""
        raise NotImplementedError

    def blocks(self) -> list[Block]:
        """The blocks in order."""
        return [block for block in self.layers if isinstance(block, Block)]

    def find_rotated_dim(self) -> int:
        """Channels of a head that rotary positions turn."""
        raise NotImplementedError

    def reset(self) -> None:
        """Tie the output to the embedding (moving a model between devices may have separated them), count from zero."""
        if self.config.tied_embeddings:
            self.head.output.weight = self.embedding.get_parameter("weight")
        if self.expert_load is not None:
            self.expert_load.zero_()

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor | None = None,
        valid_tokens: Tensor | None = None,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        call: Callable[..., Any] = call_module,
    ) -> DecoderOutput:
        """Loss (with labels) or logits of int64 tokens [batch, sequence].

        positions: of each token, counted from 0 when not given; they restart with every packed document.
        documents: the number of each token's document, needed by the document mask and unused by the causal one.
        valid_tokens: what the summed loss is divided by; this call's valid labels when not given.
        """
        cos, sin = self.rope(tokens.shape[1], positions)
        mask = self.build_mask(documents)
        h = call(self.embedding, tokens)
        loads = []
        for block in self.layers:
            h, load = call(block, h, cos, sin, mask)
            if load is not None:
                loads.append(load)
        value = call(self.head, h, labels, valid_tokens)
        return DecoderOutput(value, torch.stack(loads) if loads else None)

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
