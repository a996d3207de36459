"""A config up to the capture of its step, as one rank of the groups at hand sees it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monograph.capture.capture import GraphKind, capture
from monograph.capture.source import StepSource
from monograph.execute.base import StepSettings
from monograph.execute.facts import make_facts
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.graph.step_graph import StepGraph
from monograph.models.model import find_scalars
from monograph.parallel.groups import Groups
from monograph.passes.runner import OptimizedGraph, build_passes
from monograph.run import build_source, capture_and_optimize, make_example
from monograph.train.config import TrainerConfig


@dataclass(frozen=True)
class Prepared:
    """All that a capture needs."""

    source: StepSource
    settings: StepSettings
    facts: Facts
    inputs: StepInputs

    def capture(self, kind: GraphKind = "step", **options: Any) -> StepGraph:
        """The graph before any pass."""
        return capture(self.source, self.inputs, kind=kind, **options)

    def capture_and_pass(self, kind: GraphKind = "step") -> OptimizedGraph:
        """The graph after all passes, with their records, which lack costs."""
        passes = build_passes(self.settings.passes, self.settings.compile.numerics)
        return capture_and_optimize(self.source, self.inputs, self.facts, passes, kind=kind, is_measured=False)


def prepare(
    config: TrainerConfig, groups: Groups, batch: Mapping[str, Tensor] | None = None, **normalizers: int
) -> Prepared:
    """A step on this batch, or on one of the config's shape."""
    source, settings = build_source(config, groups)
    inputs = make_example(config, source)
    if batch is not None:
        given = {"valid_tokens": 64, "sequences": 2, "seed": 1, **normalizers}
        scalars = {name: torch.tensor(given[name]) for name in find_scalars(source.model)}
        inputs = source.inputs(source.model.step_inputs(batch, source.part), scalars)
    return Prepared(source, settings, make_facts(source.table, groups, settings), inputs)
