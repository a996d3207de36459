"""A model with few blocks in place of many: what one of each kind costs tells what all of them do."""

from collections.abc import Sequence
from dataclasses import dataclass

from monograph.capture.block_repeats import describe_module
from monograph.models.model import Model
from monograph.models.model_config import ModelConfig

_ENOUGH = 3
"""Blocks of a kind that are captured: the first, one that stands for all others, the last."""


@dataclass(frozen=True)
class ReducedDepth:
    """How many blocks are captured, and which of them stands for each block of the whole model."""

    blocks: int
    """0: the model cannot be made shorter."""
    stands_for: tuple[int, ...]
    """For each block of the whole model, the captured block that costs as much; itself, if it is captured."""

    @property
    def total(self) -> int:
        """Blocks of the whole model."""
        return len(self.stands_for)

    @property
    def extra(self) -> dict[int, int]:
        """A captured block -> blocks of the whole model that are like it and are not captured."""
        left_out = self.stands_for[self.blocks :] if self.blocks else ()
        return {block: left_out.count(block) for block in dict.fromkeys(left_out)}

    def reduce(self, config: ModelConfig) -> ModelConfig:
        """The model to capture."""
        return config.replace(n_layers=self.blocks) if self.blocks else config


def find_reduced_depth(config: ModelConfig, model: Model) -> ReducedDepth:
    """The shortest prefix of a model's blocks that has enough of every kind; to be frozen is one."""
    kinds = [
        repr((describe_module(block), [weight.requires_grad for weight in block.parameters()]))
        for block in model.blocks().values()
    ]
    if getattr(config, "n_layers", None) != len(kinds):
        return ReducedDepth(0, tuple(range(len(kinds))))
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
    middle = {kind: indices[len(indices) // 2] for kind, indices in seen.items()}
    return ReducedDepth(prefix, (*range(prefix), *(middle[kind] for kind in kinds[prefix:])))
