"""Runs a captured step: binds inputs by name, runs the graph, adds the gradients up.

Nothing is recorded for autograd (the graph holds its own backward), and each value dies after its last use.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from monograph.axes import Axis, Group
from monograph.capture.step import buffers_of, make_step
from monograph.capture.trace import Example, capture
from monograph.errors import ConfigError
from monograph.execute.base import MeshStep, StepSettings
from monograph.execute.sharded import ShardedStep
from monograph.graph.facts import Facts
from monograph.graph.signature import InputKind, OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.models.decoder import Decoder, DecoderOutput
from monograph.parallel.groups import Groups
from monograph.parallel.param_table import ParamTable
from monograph.passes.runner import Record, build_passes, run_passes


class GraphStep(MeshStep):
    """The whole step as one graph, captured when the first batch shows its shape.

    Evaluation runs the same model op by op over the same shards: it has no backward to capture.
    """

    def __init__(self, model: Decoder, table: ParamTable, groups: Groups, settings: StepSettings) -> None:
        super().__init__(model, table, groups)
        self.groups = groups
        self.settings = settings
        self.eager = ShardedStep(model, table, groups, settings)
        self.parameters = self.eager.parameters
        self.coords = groups.coords()
        self.buffers = buffers_of(model)
        self.graph: StepGraph | None = None
        self.records: list[Record] = []

    def forward(self, inputs: Mapping[str, Tensor], valid_tokens: Tensor) -> DecoderOutput:
        return self.eager.forward(inputs, valid_tokens)

    def backward(self, loss: Tensor) -> None:
        self.eager.backward(loss)

    @torch.no_grad()
    def __call__(self, batch: Mapping[str, Tensor], valid_tokens: Tensor) -> Tensor:
        """Add this micro-batch's gradients and return this rank's share of the loss."""
        inputs = self.inputs(batch)
        if self.graph is None:
            self.graph = self.capture(inputs, valid_tokens)
        results = self.graph.module(*self.bind(self.graph, inputs, valid_tokens))
        loss: Tensor | None = None
        for spec, value in zip(self.graph.outputs, results, strict=True):
            if spec.kind is OutputKind.LOSS:
                loss = value
            elif spec.kind is OutputKind.LOADS:
                self._count(value)
            else:
                self._add(spec.name, value)
        if loss is None:
            raise AssertionError("a step graph returns its loss")
        return loss

    def capture(self, inputs: Mapping[str, Tensor], valid_tokens: Tensor) -> StepGraph:
        """Capture the step for this batch's shapes, improve it, and prove that every rank came to the same."""
        graph = self.trace(inputs, valid_tokens)
        self.records = run_passes(graph, build_passes(self.settings.passes), self.settings.passes.off, self.facts())
        self.groups.check_same("the captured graph", graph.digest())
        return graph

    def trace(self, inputs: Mapping[str, Tensor], valid_tokens: Tensor, *, has_sources: bool = False) -> StepGraph:
        """The step for this batch's shapes as the model is written, before any pass; source lines on demand."""
        step = make_step(
            self.model,
            self.table,
            compute_dtype=self.settings.compute_dtype,
            reduce_dtype=self.settings.reduce_dtype,
        )
        example = Example(self.parameters, self.buffers, inputs, self.coords, {"valid_tokens": valid_tokens})
        with torch.enable_grad():
            return capture(step, self.model, example, has_sources=has_sources)

    def facts(self) -> Facts:
        """What passes may know: the same on every rank."""
        mesh = self.groups.mesh
        return Facts(
            degrees={axis: mesh.degree(axis) for axis in Axis},
            group_sizes={group.value: mesh.group_size(group) for group in Group},
            slots=tuple(slot.name for slot in self.table),
            reshard=self.settings.reshard,
            device=self.device.type,
        )

    def bind(self, graph: StepGraph, inputs: Mapping[str, Tensor], valid_tokens: Tensor) -> list[Tensor]:
        """The graph's inputs in order, each checked against what was captured."""
        known: dict[InputKind, Mapping[str, Tensor]] = {
            InputKind.STATE: self.parameters,
            InputKind.BUFFER: self.buffers,
            InputKind.BATCH: inputs,
            InputKind.COORDS: {"coords": self.coords},
            InputKind.SCALAR: {"valid_tokens": valid_tokens},
        }
        values = []
        for spec in graph.inputs:
            value = known[spec.kind][spec.name]
            try:
                spec.check(value)
            except ValueError as error:
                raise ConfigError(
                    "this batch does not fit the captured step",
                    why=str(error),
                    do="keep shapes fixed: training.seq_len and training.local_batch_size are part of the graph",
                ) from None
            values.append(value)
        return values

    def _count(self, loads: Tensor) -> None:
        if self.model.expert_load is not None:
            self.model.expert_load.add_(loads)

    def _add(self, name: str, gradient: Tensor) -> None:
        parameter = self.parameters[name]
        gradient = gradient.to(parameter.dtype)
        parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
