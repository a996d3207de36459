"""The step of graph mode: runs the programs that were built from captured graphs."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from monograph.axes import Group
from monograph.capture.capture import GraphKind
from monograph.capture.source import StepSource
from monograph.errors import ConfigError
from monograph.execute.artifact.load import Artifact, failures_explained
from monograph.execute.base import MeshStep
from monograph.execute.build import StepProgram
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.outputs import LossBuffer, StepOutputBuffers
from monograph.graph.query import group_of, is_launch
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.parallel.groups import Groups
from monograph.parallel.mesh_reductions import REDUCTIONS
from monograph.passes.runner import OptimizedGraph


def find_graph_groups(graphs: Iterable[StepGraph]) -> set[Group]:
    """The groups of the collectives in some graphs."""
    return {Group(group_of(node)) for graph in graphs for node in graph.nodes if is_launch(node) and group_of(node)}


@dataclass(frozen=True)
class Evaluation:
    """The program of the forward alone, and where its loss is afterwards."""

    program: StepProgram
    losses: LossBuffer


class GraphStep(MeshStep):
    """Runs a training step as one program, and an evaluation as another, of the forward alone."""

    weight_cache: CastWeightCache

    def __init__(
        self,
        source: StepSource,
        groups: Groups,
        graphs: Mapping[GraphKind, OptimizedGraph],
        program: StepProgram,
        evaluation: Evaluation | None,
        outputs: StepOutputBuffers,
        cache: CastWeightCache,
        artifact: Artifact | None = None,
    ) -> None:
        super().__init__(source.model, source.table, groups, seed=source.seed)
        self.source, self.parameters, self.weight_cache = source, source.parameters, cache
        self.captured, self.graph, self.records = graphs["step"], graphs["step"].graph, graphs["step"].records
        self.metrics, self.outputs = outputs.metrics, outputs
        self.program: StepProgram | None = program
        self.evaluation = evaluation
        self.artifact = artifact

    @property
    def compiled_graphs(self) -> int | None:
        """Parts that a compiler was given; None when the graph runs op by op."""
        return self.graph.compiled or None

    @property
    def ran_passes(self) -> Sequence[str]:
        """Names of the passes that ran here, or where the artifact was made."""
        return self.captured.ran

    def run(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        assert self.program is not None, "the step was closed"
        self.weight_cache.refresh()
        with failures_explained(self.artifact):
            self.program.run(self.source.inputs(inputs, scalars))
        return self.outputs.copy_loss()

    @torch.no_grad()
    def run_evaluation(self, inputs: Mapping[str, Tensor], scalars: Mapping[str, Tensor]) -> Tensor:
        if self.evaluation is None:
            raise ConfigError(
                "validator.interval is 0, so no evaluation was captured",
                why="graph mode captures it with the step, before training begins",
                do="--validator.interval 100",
            )
        self.weight_cache.refresh()
        with failures_explained(self.artifact):
            self.evaluation.program.run(self.source.inputs(inputs, scalars))
        return self.evaluation.losses.copy_loss()

    @contextmanager
    def op_by_op(self) -> Iterator[None]:
        assert self.program is not None, "the step was closed"
        with ExitStack() as stack:
            stack.enter_context(self.program.unrecorded())
            if self.evaluation is not None:
                stack.enter_context(self.evaluation.program.unrecorded())
            yield

    def find_missing_memory(self) -> int:
        assert self.program is not None, "the step was closed"
        return self.program.find_missing_memory()

    def find_collectives(self) -> Sequence[str]:
        return [f"{tag_of(node).path or 'the step'} ({node.name})" for node in self.graph.nodes if is_launch(node)]

    def find_groups(self) -> set[Group]:
        return {*REDUCTIONS, *find_graph_groups([self.graph])}

    def close(self) -> None:
        """Release what was captured, while the groups it communicates over still exist."""
        if self.program is not None:
            self.program.close()
        if self.evaluation is not None:
            self.evaluation.program.close()
        self.program = self.evaluation = None
        if self.artifact is not None:
            self.artifact.close()
