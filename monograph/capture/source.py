"""What a step is captured from and then run on: the model on its mesh, and this rank's part of the state."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from monograph.capture.step import OutputProbe
from monograph.graph.inputs import StepInputs
from monograph.models.model import Model
from monograph.models.sequence_part import WHOLE, SequencePart
from monograph.parallel.overlap_config import ExpertOverlapConfig
from monograph.parallel.param_table import ParamTable
from monograph.parallel.pipeline.stage_runner import Stage


@dataclass(frozen=True, kw_only=True)
class StepSource:
    """The model, its parameters by slot, and how the step computes with them."""

    model: Model
    """Gives the structure; its own parameters are never read."""
    table: ParamTable
    parameters: Mapping[str, Tensor]
    """This rank's shards."""
    buffers: Mapping[str, Tensor]
    coords: Tensor
    """This rank's coordinates in the mesh."""
    compute_dtype: torch.dtype
    reduce_dtype: torch.dtype
    part: SequencePart = WHOLE
    """The part of every sequence that this rank has."""
    seed: int = 0
    """Of a model that draws random numbers."""
    overlap: ExpertOverlapConfig = field(default_factory=ExpertOverlapConfig)
    """Which modules run chunk by chunk."""
    probe: OutputProbe | None = None
    """What else a captured step should put out."""
    stage: Stage | None = None
    """The part of the model that is captured, in a pipeline; `table` and `parameters` are those of its units."""

    def inputs(
        self,
        batch: Mapping[str, Tensor],
        scalars: Mapping[str, Tensor],
        carry: Mapping[str, Tensor] | None = None,
        carry_gradients: Mapping[str, Tensor] | None = None,
    ) -> StepInputs:
        """All inputs of a step on a prepared micro-batch."""
        frozen = frozenset(slot.name for slot in self.table if slot.is_frozen)
        more = (carry or {}, carry_gradients or {})
        return StepInputs(self.parameters, self.buffers, batch, self.coords, scalars, frozen, *more)
