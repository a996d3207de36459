"""A model with few blocks in place of many: what one of each kind costs tells what all of them do."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from monograph.capture.block_repeats import describe_module
from monograph.models.model import Model
from monograph.models.model_config import ModelConfig

_ENOUGH = 3
"""Blocks of a kind that are captured: the first, one that stands for all others, the last."""


@dataclass(frozen=True)
class ReducedDepth:
    """How many blocks are captured, and how many more there are like which of them."""

    blocks: int
    """0: the model cannot be made shorter."""
    extra: dict[int, int]
    """A captured block -> blocks of the whole model that are like it and are not captured."""
    total: int

    def reduce(self, config: ModelConfig) -> ModelConfig:
        """The model to capture."""
        return config.replace(n_layers=self.blocks) if self.blocks else config


def find_reduced_depth(config: ModelConfig) -> ReducedDepth:
    """The shortest prefix of a model's blocks that has enough of every kind."""
    with torch.device("meta"):
        model: Model = config.build()
    kinds = [repr(describe_module(block)) for block in model.blocks().values()]
    if getattr(config, "n_layers", None) != len(kinds):
        return ReducedDepth(0, {}, len(kinds))
    return plan_depth(kinds)


def plan_depth(kinds: Sequence[str]) -> ReducedDepth:
    """The same from the blocks' kinds alone, in order."""
    counts = {kind: kinds.count(kind) for kind in kinds}
    seen: dict[str, list[int]] = {kind: [] for kind in counts}
    for index, kind in enumerate(kinds):
        seen[kind].append(index)
        if all(len(seen[each]) >= min(_ENOUGH, count) for each, count in counts.items()):
            break
    prefix = sum(map(len, seen.values()))
    extra = {
        places[len(places) // 2]: counts[kind] - len(places)
        for kind, places in seen.items()
        if counts[kind] > len(places)
    }
    return ReducedDepth(prefix, extra, len(kinds))
