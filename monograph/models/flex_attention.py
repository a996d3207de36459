"""FlexAttention in a model: the core that calls it, and what its layers read, computed once for each kind."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from monograph.annotate import annotate, annotate_attention
from monograph.compat.flex import BlockTables
from monograph.kernels.flex_attention import build_block_tables
from monograph.models.attention_core import AttentionCore
from monograph.models.attention_kernel_config import AttentionKernelConfig
from monograph.models.attention_kind import AttentionKind
from monograph.models.cache import LayerCache
from monograph.models.flex_mods import FlexSpec, load_flex
from monograph.models.parallel_plan import ModuleRule, ParallelForm, ParallelPlan

REGION = "flex"
"""The name of what computes FlexAttention and its tables, in captured steps."""


class FlexInputs(NamedTuple):
    """What the layers of a kind read besides q, k and v; tensors that no function asks for are None."""

    tables: BlockTables
    documents: Tensor | None = None
    positions: Tensor | None = None
    tokens: Tensor | None = None


def build_flex_inputs(spec: FlexSpec, tokens: Tensor, given: Mapping[str, Tensor | None]) -> FlexInputs:
    """The tables of a kind for a micro-batch, and the tensors that its functions ask for."""
    op = load_flex(spec)
    batch, length = tokens.shape
    known = dict(given) | {"tokens": tokens}
    if "positions" in spec.names and known.get("positions") is None:
        known["positions"] = torch.arange(length, device=tokens.device).expand(batch, length).contiguous()
    tensors = {name: value for name in spec.names if (value := known[name]) is not None}
    masked = [tensors[name] for name in spec.mask_names]
    by_sequence, by_head = op.find_read_scalars(masked)
    sizes = {"batch": batch if by_sequence else 1, "heads": spec.n_heads if by_head else 1, "length": length}
    with annotate(REGION), torch.no_grad():
        tables = build_block_tables(op.mask, masked, **sizes, device=tokens.device)
    return FlexInputs(tables, **tensors)


class FlexCore(AttentionCore):
    """FlexAttention of queries over keys and values."""

    def __init__(self, spec: FlexSpec, *, scale: float) -> None:
        super().__init__(spec.kind, scale=scale)
        self.spec = spec
        self.specs = {flag: replace(spec, has_documents=flag) for flag in (False, True)}
        self.ops = {flag: load_flex(each) for flag, each in self.specs.items()}
        self.find_first_head: nn.Module | None = None
        """What finds the number of a rank's first head where heads are sharded."""

    def plan_parallel(self) -> ParallelPlan:
        """Functions get the numbers of heads in the whole model."""
        return ParallelPlan(modules=(ModuleRule(pattern="", form=ParallelForm.NUMBERED_HEADS),))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        segments: Any = None,
        sinks: Tensor | None = None,
        cache: LayerCache | None = None,
    ) -> Tensor:
        """The output for q, k and v as of every core; `segments` are the FlexInputs of the kind."""
        assert isinstance(segments, FlexInputs) and sinks is None and cache is None
        has_documents = segments.documents is not None
        spec, op = self.specs[has_documents], self.ops[has_documents]
        tables = segments.tables
        scored, masked = ([getattr(segments, name) for name in names] for names in (spec.score_names, spec.mask_names))
        if self.find_first_head is not None:
            first = self.find_first_head(q.shape[2])
            tables = take_heads(tables, first, q.shape[2])
            scored, masked = [*scored, first], [*masked, first]
        known = "" if spec.mask_mod else spec.kind.describe()
        with annotate(REGION), annotate_attention(known):
            return op(q, k, v, tables, tuple(scored), tuple(masked), scale=self.scale)


def take_heads(tables: BlockTables, first: Tensor, count: int) -> BlockTables:
    """The tables of `count` heads from the first one on, where heads have tables of their own."""
    if tables.kv_indices.shape[1] == 1:
        return tables
    here = torch.arange(count, device=first.device) + first
    return BlockTables(*(table.index_select(1, here) for table in tables))


def build_core(config: AttentionKernelConfig, kind: AttentionKind, *, n_heads: int, scale: float) -> AttentionCore:
    """What computes attention in a layer of this kind."""
    if config.kernel == "flex":
        spec = FlexSpec(kind, n_heads, config.mask_mod, config.score_mod)
        return FlexCore(spec, scale=scale)
    return AttentionCore(kind, scale=scale, kernel=config.kernel, cap=config.find_score_cap())
