"""The decoder-only transformer that all families share: an embedding, blocks, a head with the loss.

These three kinds of units are what a trainer handles one at a time (casting and gathering the parameters of a unit
just before it runs): `forward` runs each of them through `call`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from monograph.kernels.cross_entropy import cap_logits
from monograph.kernels.rope import Rotation
from monograph.labels import IGNORED_LABEL
from monograph.models.attention_kernel_config import AttentionKernelConfig, uses_flex
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.cache import DecoderCache, LayerCache
from monograph.models.config import DecoderConfig, LossConfig, ResidualSpec
from monograph.models.dropout import Dropout
from monograph.models.feed_forward import FeedForward
from monograph.models.flex_attention import FlexInputs, build_flex_inputs
from monograph.models.flex_mods import FlexSpec
from monograph.models.linear import Embedding, Linear
from monograph.models.load_balance import LoadBalance, RouterStats, sum_weighted, update_expert_bias
from monograph.models.model import BatchTensor, Model, StepOutput, Unit, UnitCall, blocks_of, call_module
from monograph.models.moe import Moe
from monograph.models.norm import build_norm
from monograph.models.parallel_plan import ParallelPlan, collect_plan, plan_vocab_embedding, plan_vocab_head
from monograph.models.segments import build_segments
from monograph.models.sequence_part import WHOLE, SequencePart


class Block(nn.Module):
    """Attention, then a feed-forward layer or experts, each reading a norm of the stream and adding to it."""

    def __init__(self, residual: ResidualSpec, *, attention: nn.Module, feed_forward: FeedForward | Moe) -> None:
        super().__init__()
        self.attention_norm = build_norm(residual)
        self.attention = attention
        self.ffn_norm = build_norm(residual)
        self.moe = feed_forward if isinstance(feed_forward, Moe) else None
        self.feed_forward = None if isinstance(feed_forward, Moe) else feed_forward
        self.attention_dropout = Dropout(residual.dropout) if residual.dropout else None
        self.ffn_dropout = Dropout(residual.dropout) if residual.dropout else None

    def forward(
        self,
        h: Tensor,
        cos: Tensor,
        sin: Tensor,
        segments: Tensor | FlexInputs | None = None,
        seed: Tensor | None = None,
        token_index: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> tuple[Tensor, RouterStats | None]:
        """The residual stream [batch, sequence, dim] after this block, and its router's statistics (None if dense)."""
        rotation: Rotation = (cos, sin)
        more = () if cache is None else (cache,)
        out = self.attention(self.attention_norm(h), rotation, segments, *more)
        h = h + (out if self.attention_dropout is None else self.attention_dropout(out, seed, token_index))
        stats: RouterStats | None = None
        if self.feed_forward is not None:
            out = self.feed_forward(self.ffn_norm(h))
        else:
            assert self.moe is not None
            out, stats = self.moe(self.ffn_norm(h))
        return h + (out if self.ffn_dropout is None else self.ffn_dropout(out, seed, token_index)), stats


class Head(nn.Module):
    """The last norm and the projection to the vocabulary; with labels, the loss instead of logits.

    With a `logit_cap`, logits become logit_cap * tanh(logits / logit_cap).
    """

    def __init__(self, residual: ResidualSpec, *, vocab_size: int, loss: LossConfig, logit_cap: float = 0.0) -> None:
        super().__init__()
        self.logit_cap = logit_cap
        self.norm = build_norm(residual)
        self.output = Linear(residual.dim, vocab_size, init_std=residual.init_std)
        self.loss = loss.build(kernels=residual.kernels, logit_cap=logit_cap)

    def plan_parallel(self) -> ParallelPlan:
        """The vocabulary is spread over ranks; its logits are never gathered."""
        return plan_vocab_head(norm="norm")

    def forward(self, h: Tensor, labels: Tensor | None = None, valid_tokens: Tensor | None = None) -> Tensor:
        h = self.norm(h)
        if labels is None:
            return cap_logits(self.output(h), self.logit_cap)[0]
        return self.loss(h, self.output.weight, labels, valid_tokens)


class Decoder(Model):
    """A language model. Families say which blocks it is made of, and how many channels of a head are rotated.

    Metrics of a model with experts: `expert_load`, int64 [MoE layers, experts]; the share of every auxiliary loss, fp32
    [MoE layers]; their weighted sum `aux_loss`.
    """

    Config: ClassVar[Any] = DecoderConfig
    embedding: nn.Module
    """An Embedding, or what parallelism puts in its place: token ids in, the stream out."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        residual = config.residual()
        self.embedding = self.build_embedding()
        self.kinds = [self.find_attention_kind(layer) for layer in range(config.n_layers)]
        self.flex_specs = self.find_flex_specs()
        self.layers = nn.ModuleList(self.build_block(residual, layer) for layer in range(config.n_layers))
        self.head = self.build_head(residual)
        self.rope = config.rope.build(dim=self.find_rotated_dim())
        self.load_balance = build_load_balance(config, sum(isinstance(layer.moe, Moe) for layer in self.layers))
        self.reset()

    def build_embedding(self) -> Embedding:
        """The embedding."""
        return Embedding(self.config.vocab_size, self.config.dim, init_std=self.config.init_std)

    def build_head(self, residual: ResidualSpec) -> Head:
        """The last norm, the output projection and the loss."""
        return Head(residual, vocab_size=self.config.vocab_size, loss=self.config.loss)

    def build_block(self, residual: ResidualSpec, layer: int) -> Block:
        """The block with this number."""
        raise NotImplementedError

    def find_attention_kind(self, layer: int) -> AttentionKind:
        """What the queries of the block with this number see."""
        return CAUSAL

    def find_flex_specs(self) -> dict[AttentionKind, FlexSpec]:
        """What FlexAttention computes in the layers of each kind; empty where another kernel does."""
        if not uses_flex(self.config):
            return {}
        attention: AttentionKernelConfig = self.config.attention  # type: ignore[attr-defined]
        mods = attention.mask_mod, attention.score_mod
        heads = attention.find_query_heads()
        specs = {kind: FlexSpec(kind, heads, *mods, self.has_documents) for kind in dict.fromkeys(self.kinds)}
        for spec in specs.values():
            spec.check()
        return specs

    def find_position_table(self, kind: AttentionKind) -> nn.Module:
        """What a block of this kind gets for positions: a module that returns two tensors, by default RoPE's table."""
        return self.rope

    def find_rotated_dim(self) -> int:
        """Channels of a head that get RoPE."""
        raise NotImplementedError

    def units(self) -> list[Unit]:
        return [Unit("embedding"), *blocks_of("layers", self.layers, others=1), Unit("head")]

    @property
    def batch_spec(self) -> Mapping[str, BatchTensor]:
        """With a causal mask a sequence is one text, whatever was packed into it."""
        more = ("positions", "documents") if self.has_documents else ()
        spec = dict.fromkeys(("tokens", "labels", *more), BatchTensor())
        return spec | {"samples": BatchTensor(("batch",))} if self.draws_random else spec

    @property
    def has_documents(self) -> bool:
        """Whether tokens of one packed document do not see those of another."""
        return self.config.mask == "document"

    @property
    def draws_random(self) -> bool:
        return self.config.dropout > 0

    def build_segments(
        self, shape: Sequence[int], documents: Tensor | None, part: SequencePart = WHOLE
    ) -> dict[str, Tensor]:
        """The tables of all kinds that need one, from documents in host memory, by the name that `forward` takes.

        FlexAttention reads the documents themselves.
        """
        if self.flex_specs:
            return {} if documents is None else {"documents": documents.to(torch.int32)}
        sizes = {"batch": shape[0], "length": shape[1], "max_documents": self.config.max_documents}
        is_flash = getattr(getattr(self.config, "attention", None), "kernel", "") == "flash"
        tables = {
            f"{kind.name}_segments": build_segments(documents, kind, part, **sizes, pays_for_room=is_flash)
            for kind in dict.fromkeys(self.kinds)
        }
        return {name: table for name, table in tables.items() if table is not None}

    def step_inputs(self, batch: Mapping[str, Tensor], part: SequencePart) -> dict[str, Tensor]:
        """Documents become tables of segments, and tokens are numbered by where they are in all data."""
        inputs = super().step_inputs(batch, part)
        inputs.pop("documents", None)
        shape = batch["tokens"].shape
        inputs |= self.build_segments(shape, batch["documents"] if self.has_documents else None, part)
        if not part.is_whole and "positions" not in inputs:
            inputs["positions"] = part.take(torch.arange(shape[1]).expand(shape), 1)
        if "samples" in inputs:
            index = inputs.pop("samples").unsqueeze(1) * shape[1] + torch.arange(shape[1])
            inputs["token_index"] = part.take(index, 1)
        return inputs

    @property
    def normalizers(self) -> tuple[str, ...]:
        return ("valid_tokens", "sequences") if self.load_balance is not None else ("valid_tokens",)

    def count_normalizers(self, batch: Mapping[str, Tensor]) -> dict[str, int]:
        valid = int((batch["labels"] != IGNORED_LABEL).sum())
        counts = {"valid_tokens": valid, "sequences": batch["tokens"].shape[0]}
        return {name: counts[name] for name in self.normalizers}

    def parallel_plan(self) -> ParallelPlan:
        """The vocabulary is spread over ranks where the stream begins; all else is what modules say."""
        return plan_vocab_embedding("embedding") + collect_plan(self)

    def finish_update(self, metrics: Mapping[str, Tensor]) -> None:
        """The experts' selection biases follow their load."""
        if "expert_load" in metrics:
            update_expert_bias(self, metrics["expert_load"], self.config.find_bias_update_rate())

    def reset(self) -> None:
        """Tie the output to the embedding (moving a model between devices may have separated them)."""
        if self.config.tied_embeddings:
            self.head.output.weight = self.embedding.get_parameter("weight")

    def forward(
        self,
        tokens: Tensor,
        labels: Tensor,
        valid_tokens: Tensor | None = None,
        *,
        sequences: Tensor | None = None,
        positions: Tensor | None = None,
        seed: Tensor | None = None,
        token_index: Tensor | None = None,
        call: UnitCall = call_module,
        **segments: Tensor,
    ) -> StepOutput:
        """The loss of int64 tokens [batch, sequence] and the labels that follow them.

        positions: of each token, counted from 0 when not given; they restart with every packed document.
        segments: what queries see, by kind of attention: `causal_segments` and so on, from `build_segments`.
        valid_tokens: what the summed loss is divided by; this call's valid labels when not given.
        sequences: what sums of auxiliary losses over sequences are divided by; this call's when not given.
        seed, token_index: what dropout draws from: the run's seed, and the number of each token in all data.
        """
        h, stats = self.run_blocks(tokens, positions, segments, call, seed, token_index)
        loss = call(self.head, h, labels, valid_tokens)
        metrics = {"expert_load": self.stack_load(stats, tokens.device)} if stats else {}
        if self.load_balance is None or not torch.is_grad_enabled():
            return StepOutput(loss, loss, metrics)
        if sequences is None:
            sequences = torch.tensor(tokens.shape[0], device=tokens.device)
        losses = self.load_balance(stats, tokens.shape[1], sequences)
        total = sum_weighted(losses, self.load_balance.coefficients)
        metrics |= {name: value.detach() for name, value in losses.items()} | {"aux_loss": total.detach()}
        return StepOutput(loss, loss + total, metrics)

    def predict(
        self,
        tokens: Tensor,
        *,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        cache: DecoderCache | None = None,
        last: int = 0,
        call: UnitCall = call_module,
    ) -> Tensor:
        """The logits [batch, sequence, vocabulary] of what follows each token; without documents, a row is one.

        With a cache, the tokens follow those that it has and are added to it; their documents and positions follow
        from it. `last` returns the logits of so many last tokens only.
        """
        if cache is not None:
            positions, documents = cache.positions(tokens.shape[1]), cache.documents(tokens.shape[1])
        segments = {}
        if cache is None or cache.length == 0:
            segments = self.build_segments(tokens.shape, None if documents is None else documents.cpu())
        on_device = {name: table.to(tokens.device) for name, table in segments.items()}
        h, _ = self.run_blocks(tokens, positions, on_device, call, cache=cache)
        if cache is not None:
            cache.advance(tokens.shape[1])
        return call(self.head, h[:, -last:])

    def new_cache(self, batch: int, capacity: int, padding: Sequence[int] = ()) -> DecoderCache | None:
        """None where a layer is not causal, or may not be: what it said about earlier tokens changes with every one."""
        if self.flex_specs or not all(kind.causal for kind in self.kinds):
            return None
        device = self.head.norm.weight.device
        return DecoderCache(self.kinds, batch=batch, capacity=capacity, device=device, padding=padding)

    def run_blocks(
        self,
        tokens: Tensor,
        positions: Tensor | None,
        segments: Mapping[str, Tensor],
        call: UnitCall,
        seed: Tensor | None = None,
        token_index: Tensor | None = None,
        cache: DecoderCache | None = None,
    ) -> tuple[Tensor, list[RouterStats | None]]:
        """The stream after the last block, and what each router did; None for a router of another pipeline stage."""
        modules = [self.find_position_table(kind) for kind in self.kinds]
        tables = {module: module(tokens.shape[1], positions) for module in dict.fromkeys(modules)}
        inputs = self.find_attention_inputs(tokens, positions, segments)
        h = call(self.embedding, tokens)
        stats: list[RouterStats | None] = []
        for number, (block, kind) in enumerate(zip(self.layers, self.kinds, strict=True)):
            cos, sin = tables[modules[number]]
            more = () if cache is None else (cache.layers[number],)
            h, found = call(block, h, cos, sin, inputs[kind], seed, token_index, *more)
            if block.moe is not None:
                stats.append(found)
        return h, stats

    def find_attention_inputs(
        self, tokens: Tensor, positions: Tensor | None, segments: Mapping[str, Tensor]
    ) -> dict[AttentionKind, Tensor | FlexInputs | None]:
        """What the layers of each kind get to know which keys their queries see."""
        given = {"positions": positions, "documents": segments.get("documents")}
        return {
            kind: build_flex_inputs(self.flex_specs[kind], tokens, given)
            if kind in self.flex_specs
            else segments.get(f"{kind.name}_segments")
            for kind in dict.fromkeys(self.kinds)
        }

    def stack_load(self, stats: Sequence[RouterStats | None], device: torch.device) -> Tensor:
        """The experts' load, int64 [MoE layers, experts]; zeros where a layer is on another pipeline stage."""
        moe = self.config.find_moe()
        assert moe is not None
        nothing = None if all(stats) else torch.zeros(moe.n_experts, dtype=torch.int64, device=device)
        return torch.stack([nothing if each is None else each.load for each in stats])  # type: ignore[misc]


def build_load_balance(config: DecoderConfig, n_layers: int) -> LoadBalance | None:
    """The auxiliary losses of a model with this many MoE layers; None where no loss is on."""
    moe = config.find_moe()
    if moe is None or not moe.balance.is_on:
        return None
    return moe.balance.build(router=moe.router, n_experts=moe.n_experts, n_layers=n_layers)
