"""The step of graph mode: captured for batches of one shape, improved by the passes, run as a program."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from monograph.axes import Axis, Group
from monograph.capture.block_repeats import BlockRepeat, find_block_repeats, find_skipped_blocks
from monograph.capture.chunks import capture_chunk_nodes
from monograph.capture.step import buffers_of, make_forward, make_step
from monograph.capture.trace import Example, capture
from monograph.compat.compiler import start_workers
from monograph.execute.artifact.fields import EVALUATION, STEP
from monograph.execute.artifact.load import Artifact, failures_explained
from monograph.execute.base import MeshStep, StepSettings
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.cudagraph import CudaGraphProgram, find_obstacles, refuse
from monograph.execute.custom_kernels import UPDATE, KernelCall, build_calls, find_calls, find_updates
from monograph.execute.gradients import Gradients
from monograph.execute.memory_limits import find_memory_limits
from monograph.execute.program import Program, Results, Sources
from monograph.execute.replay_watchdog import ReplayWatchdog
from monograph.execute.sharded import make_shards
from monograph.graph.facts import Facts
from monograph.graph.signature import InputKind, InputSpec, OutputKind, OutputSpec, describe_input
from monograph.graph.step_graph import StepGraph
from monograph.log import get_log
from monograph.models.decoder import Decoder
from monograph.parallel.chunks import find_chunks
from monograph.parallel.groups import Groups
from monograph.parallel.param_table import ParamTable
from monograph.parallel.shard import BlocksDiffer
from monograph.passes.base import Pass
from monograph.passes.runner import Record, build_passes, run_passes

log = get_log("graph")


class GraphStep(MeshStep):
    """Forward, loss and backward as one graph; evaluation as another, of the forward alone."""

    kept: CastWeightCache

    def __init__(self, model: Decoder, table: ParamTable, groups: Groups, settings: StepSettings) -> None:
        super().__init__(model, table, groups)
        self.groups, self.settings = groups, settings
        if self.device.type == "cuda" and settings.passes.has_compiler and not settings.compile.artifact:
            start_workers()  # early, because they take their time; a CPU has none to spare
        self.parameters = make_shards(table, groups, settings)
        self.coords = groups.coords()
        self.buffers = buffers_of(model)
        self.chunks = find_chunks(model, settings.compile.expert_overlap)
        self.records: list[Record] = []
        self.capture_seconds = 0.0
        self.graph: StepGraph | None = None
        self.artifact: Artifact | None = None
        self._has_kernels = False
        self.obstacles: list[str] = []
        is_narrow = settings.passes.runs("narrow_gradients", settings.compile.numerics)
        self._gradients = Gradients(self.parameters, keeps_dtype=settings.is_single_pass and is_narrow)
        self._results = Results()
        self.kept = CastWeightCache(self.parameters)
        self.program: Program | CudaGraphProgram | None = None
        self._evaluation: Program | None = None

    @property
    def compiled_graphs(self) -> int | None:
        """Parts that a compiler was given; None when the graph runs op by op."""
        return self.graph.compiled if self.graph is not None and self.graph.compiled else None

    def __call__(self, batch: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]) -> Tensor:
        """Add this micro-batch's gradients and return this rank's share of the loss."""
        inputs = self.inputs(batch)
        assert self.program is not None, "the step was not built"
        self.kept.refresh(is_updated=self._gradients.is_empty)
        with failures_explained(self.artifact):
            self.program.run(self.sources(inputs, normalizers))
        assert self._results.loss is not None
        return self._results.loss.clone()

    @torch.no_grad()
    def evaluate(self, batch: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]) -> Tensor:
        """This rank's share of the loss; nothing is counted and nothing is kept."""
        inputs = self.inputs(batch)
        if self._evaluation is None:
            specs = self.schema(inputs, normalizers)
            graph = self.read_graph(self.artifact, EVALUATION, specs) if self.artifact else None
            graph = graph or self.capture_evaluation(inputs, normalizers)[0]
            self._evaluation = Program(graph, self._take_loss, self.sources(inputs, normalizers), self.kept)
        self.kept.refresh(is_updated=True)
        with failures_explained(self.artifact):
            self._evaluation.run(self.sources(inputs, normalizers))
        assert self._results.loss is not None
        return self._results.loss.clone()

    def use(self, artifact: Artifact, specs: Sequence[InputSpec]) -> None:
        """Run an artifact's graphs on inputs of these forms: nothing will be captured."""
        self.artifact, self.graph = artifact, self.read_graph(artifact, STEP, specs)
        self._has_kernels = artifact.load_custom_kernels()

    def read_graph(self, artifact: Artifact, name: str, specs: Sequence[InputSpec]) -> StepGraph:
        """One of an artifact's graphs, checked against this run."""
        return artifact.graph(name, self.facts(), specs=specs, limits=find_memory_limits(self.device))

    def build(self, inputs: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]) -> None:
        """Capture and improve, unless an artifact did; make ready to run."""
        self.graph = self.graph or self.capture(inputs, normalizers)
        if not self._has_kernels:
            build_calls(self.find_custom_calls(self.graph))
        program = Program(self.graph, self._take, self.sources(inputs, normalizers), self.kept)
        if not self.can_record(self.graph):
            self.program = program
            return
        watchdog = None
        if self.groups.has_peers:
            watchdog = ReplayWatchdog(timeout_seconds=self.groups.timeout_seconds, rank=self.rank)
        self.program = CudaGraphProgram(program, self._gradients, self._results, watchdog)

    def find_custom_calls(self, graph: StepGraph) -> list[KernelCall]:
        """Kernels of ours that a step will launch: known before it runs, they are built side by side."""
        updates = [call for call in find_updates(graph) if self.settings.is_single_pass or call.name != UPDATE]
        return [*find_calls(graph), *updates]

    def capture(self, inputs: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]) -> StepGraph:
        """Capture the step for this batch's shapes, improve it, and prove that every rank came to the same."""
        start = time.perf_counter()
        graph = self.trace(inputs, normalizers)
        self.capture_seconds = time.perf_counter() - start
        self.records = run_passes(graph, self.build_passes(), self.facts())
        self.groups.check_same("the captured graph", graph.digest(), text=graph.text)
        return graph

    def capture_evaluation(
        self, inputs: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]
    ) -> tuple[StepGraph, list[Record]]:
        """The same for the forward alone."""
        graph = self.trace(inputs, normalizers, is_forward=True)
        return graph, run_passes(graph, self.build_passes(), self.facts())

    @property
    def ran_passes(self) -> Sequence[str]:
        """Names of the passes that ran here, or where the artifact was made."""
        if self.artifact is not None:
            return self.artifact.ran_passes(STEP)
        return [record.name for record in self.records if record.status == "ran"]

    def build_passes(self) -> list[Pass]:
        """The passes of this run, with their options."""
        return build_passes(self.settings.passes, self.settings.compile.numerics)

    def schema(self, inputs: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]) -> tuple[InputSpec, ...]:
        """What the step reads, in order."""
        return tuple(describe_input(*named) for named in self.example(inputs, normalizers).flat())

    def example(self, inputs: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]) -> Example:
        """All inputs of the step for such a batch."""
        return Example(self.parameters, self.buffers, inputs, self.coords, normalizers)

    def trace(
        self,
        inputs: Mapping[str, Tensor],
        normalizers: Mapping[str, Tensor],
        *,
        has_sources: bool = False,
        is_forward: bool = False,
    ) -> StepGraph:
        """The step for this batch's shapes as the model is written, before any pass; source lines on demand."""
        overlap = self.settings.compile.expert_overlap
        example = self.example(inputs, normalizers)
        make: Callable[..., Any] = make_forward if is_forward else make_step

        def trace(runs: Sequence[BlockRepeat]) -> StepGraph:
            with torch.set_grad_enabled(not is_forward):
                return capture(make_part(runs), self.model, example, has_sources=has_sources, runs=runs)

        def make_part(runs: Sequence[BlockRepeat]) -> Callable[..., Any]:
            return make(
                self.model,
                self.table,
                compute_dtype=self.settings.compute_dtype,
                reduce_dtype=self.settings.reduce_dtype,
                chunks=self.chunks if overlap.strategy == "trace" else None,
                skipped=find_skipped_blocks(self.model, runs),
            )

        try:
            graph = trace([] if overlap.is_on else self.find_block_repeats())
        except BlocksDiffer as reason:
            log.debug("all blocks are captured: %s", reason)
            graph = trace([])
        if overlap.strategy == "graph" and not is_forward:
            roots = [chunks.path for chunks in self.chunks.values()]
            capture_chunk_nodes(graph, make_part([]), self.model, example, overlap, roots, has_sources=has_sources)
        return graph

    def find_block_repeats(self) -> list[BlockRepeat]:
        """The blocks that capture may leave out."""
        return find_block_repeats(self.model, self.table)

    def can_record(self, graph: StepGraph) -> bool:
        """Whether the step runs as a CUDA graph: as asked, with the reasons when it cannot."""
        wanted = self.settings.compile.cuda_graph
        if wanted == "off" or (wanted == "auto" and self.device.type != "cuda"):
            return False
        self.obstacles = find_obstacles(graph)
        if self.obstacles and wanted == "full":
            raise refuse(self.obstacles)
        if self.obstacles:
            log.info("no CUDA graph: %d nodes cannot be recorded, first %s", len(self.obstacles), self.obstacles[0])
        return not self.obstacles

    def facts(self) -> Facts:
        """What passes may know: the same on every rank."""
        mesh = self.groups.mesh
        return Facts(
            degrees={axis: mesh.degree(axis) for axis in Axis},
            group_sizes={group.value: mesh.group_size(group) for group in Group},
            reduce_dtype=self.settings.reduce_dtype,
            slots=tuple(slot.name for slot in self.table),
            reshard=self.settings.reshard,
            is_single_pass=self.settings.is_single_pass,
            device=self.device.type,
            for_artifact=self.groups.is_fake,
            overlap=self.settings.compile.expert_overlap,
        )

    def sources(self, inputs: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]) -> Sources:
        """Every input by kind and name."""
        return {
            InputKind.STATE: self.parameters,
            InputKind.BUFFER: self.buffers,
            InputKind.BATCH: inputs,
            InputKind.COORDS: {"coords": self.coords},
            InputKind.SCALAR: normalizers,
        }

    def close(self) -> None:
        """Let go of what was captured, while the groups it talks over still exist."""
        for program in (self.program, self._evaluation):
            if program is not None:
                program.close()
        self.program = self._evaluation = None
        if self.artifact is not None:
            self.artifact.close()

    def _take(self, spec: OutputSpec, value: Tensor) -> None:
        if spec.kind is OutputKind.LOSS:
            self._results.loss = value
        elif spec.kind is OutputKind.METRIC:
            self.metrics.add(spec.name, value)
        else:
            self._gradients.add(spec.name, value)

    def _take_loss(self, spec: OutputSpec, value: Tensor) -> None:
        if spec.kind is OutputKind.LOSS:
            self._results.loss = value
