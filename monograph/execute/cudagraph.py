"""The whole step as one CUDA graph: recorded once, replayed with a single launch.

A graph is recorded only if every node can be; otherwise the reasons are listed node by node. Nothing is skipped
silently: `auto` reports the reasons, `require` refuses to run.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from monograph.compat.cuda_memory import begin_peak, cached_bytes
from monograph.errors import ConfigError
from monograph.execute.failed_node import failures_located
from monograph.execute.outputs import LossBuffer
from monograph.execute.program import Program
from monograph.execute.replay_watchdog import ReplayWatchdog
from monograph.graph.host_use import find_host_use
from monograph.graph.inputs import StepInputs
from monograph.graph.query import has_symbols, is_compute, value_of
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.graph.tensor_meta import TensorMeta
from monograph.log import get_log
from monograph.plurals import counted

log = get_log("graph")
SHOWN = 8
"""Reasons an error shows; the report has all."""


def find_obstacles(graph: StepGraph, device: str = "cuda") -> list[str]:
    """Why a step cannot be recorded, one line for every node that stands in the way."""
    found = []
    for node in graph.nodes:
        reason = find_obstacle(node, device) if is_compute(node) else ""
        if reason:
            found.append(f"{tag_of(node).path or 'the step'}: {node.target}: {reason}")
    return found


def find_obstacle(node: Node, device: str) -> str:
    """Why this node cannot be part of a recording; empty when it can."""
    host_use = find_host_use(node)
    if host_use:
        return host_use
    if tag_of(node).uses_host:
        return "compiled code reads a number on the host, or copies from or to it"
    values = [value_of(each) for each in (node, *node.all_input_nodes)]
    if any(has_symbols(value) for value in values):
        return "has a size that changes from step to step"
    result = value_of(node)
    if isinstance(result, Tensor | TensorMeta) and result.device.type != device:
        return f"runs on the {result.device.type}"
    return ""


def refuse(obstacles: list[str]) -> ConfigError:
    """The error of `require`."""
    more = f"; and {len(obstacles) - SHOWN} more" if len(obstacles) > SHOWN else ""
    return ConfigError(
        f"compile.cuda_graph is require, and {counted(len(obstacles), 'node')} of the step cannot be recorded",
        why="; ".join(obstacles[:SHOWN]) + more,
        do="--compile.cuda_graph auto; or, with experts, --parallelism.expert_parallel_degree 1 "
        "--model.moe.experts.backend grouped_mm",
    )


@dataclass(frozen=True)
class RecordedGraph:
    """One recorded step, and where its results lie after every replay."""

    graph: torch.cuda.CUDAGraph
    loss: Tensor
    gradients: dict[str, Tensor]
    float8: dict[str, Tensor]
    """Weights in float8 that it leaves for micro-batches after the first of an update."""


class CudaGraphRecorder:
    """Stream, device and timeout that all recordings of a run share.

    Recordings of one pool share memory, so they may only be replayed in the order in which they were recorded, again
    and again. A program that is replayed at other times needs a pool of its own: an evaluation runs between the
    gradients and the update when the losses of a mixture's sources are measured, and would overwrite the gradients.
    """

    def __init__(
        self, device: torch.device, *, is_required: bool = False, watchdog: ReplayWatchdog | None = None
    ) -> None:
        self.device, self.is_required, self.watchdog = device, is_required, watchdog
        self.needed_bytes = 0
        """The most that a call op by op has allocated."""

    def accepts(self, graph: StepGraph) -> bool:
        """Whether every node of a graph can be recorded; where that is required, an error lists those that cannot."""
        obstacles = find_obstacles(graph)
        if obstacles and self.is_required:
            raise refuse(obstacles)
        if obstacles:
            log.info("no CUDA graph is used: %d nodes cannot be recorded, first %s", len(obstacles), obstacles[0])
        return not obstacles

    @cached_property
    def stream(self) -> torch.cuda.Stream:
        """Where warm-ups and recordings run."""
        return torch.cuda.Stream(self.device)

    def new_pool(self) -> Any:
        """Memory for recordings that are replayed in the order in which they were recorded."""
        return torch.cuda.graph_pool_handle()

    def warm_up(self, run: Callable[[], None], *, held: int = 0) -> None:
        """Run op by op on the stream of the recordings, so that its libraries are ready; `held` bytes were allocated by
        earlier calls of the same update."""
        begin_peak(self.device)  # what an earlier phase allocated is not needed by a call
        before = torch.cuda.memory_allocated(self.device)
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream), torch.no_grad():
            run()
        current.wait_stream(self.stream)
        self.needed_bytes = max(self.needed_bytes, held + torch.cuda.max_memory_allocated(self.device) - before)

    def find_missing_memory(self) -> int:
        """Bytes of the device that a call op by op lacks now: recordings share their memory with each other alone."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return max(0, self.needed_bytes - free - cached_bytes(self.device, self.stream))

    def record(self, run: Callable[[], None], pool: Any) -> torch.cuda.CUDAGraph:
        """Record without running: the replay that follows does the work. What the warm-up freed is given back first,
        because a recording has memory of its own.

        Only this thread must not call what cannot be recorded: NCCL's and ours may ask for events meanwhile.
        """
        torch.cuda.empty_cache()
        graph = torch.cuda.CUDAGraph()
        recording = torch.cuda.graph(graph, pool=pool, stream=self.stream, capture_error_mode="thread_local")
        with recording, torch.no_grad():
            run()
        return graph

    def replay(self, graph: torch.cuda.CUDAGraph) -> None:
        """Launch a recording."""
        if self.watchdog is None:
            graph.replay()
            return
        with self.watchdog.watched():
            graph.replay()

    def close(self) -> None:
        """Wait for what runs; nothing is replayed afterwards."""
        torch.cuda.synchronize(self.device)
        if self.watchdog is not None:
            self.watchdog.close()


class CudaGraphProgram:
    """A program that is run op by op during its first update, then recorded, and replayed from then on.

    There is one recording for the first micro-batch of an update, which writes gradients, one for micro-batches that
    add to them, and one for adding to gradients of lower precision (narrow_gradients), which are cast first. The first
    may cast weights to float8 for the others (cache_float8_weights), which then read the memory of its recording; those
    that cast for themselves, because weights have changed in between, have recordings of their own. A recording adds to
    the buffers that were there when it was made: gradients elsewhere have a recording of their own, too.
    """

    def __init__(self, program: Program, outputs: LossBuffer, recorder: CudaGraphRecorder) -> None:
        self.program, self.outputs, self.gradients = program, outputs, outputs.gradients
        self.recorder, self.pool = recorder, recorder.new_pool()
        self.is_warm = self.is_unrecorded = False
        self.recordings: dict[tuple[bool, bool, bool, int], RecordedGraph] = {}

    def run(self, inputs: StepInputs) -> None:
        """One call; loss and gradients are where an unrecorded program would leave them."""
        values = self.program.inputs.fill(inputs)
        is_first, float8 = self.gradients.is_empty, self.program.float8
        casts = float8.must_cast(is_first=is_first)
        module = self.program.modules[casts]
        # The whole first update runs op by op, and so does every other one that is not to be recorded.
        if self.is_unrecorded or not self.is_warm or not (is_first or self.recordings):
            with failures_located(module.graph):
                self.recorder.warm_up(lambda: module(*values), held=self.gradients.count_bytes())
            self.is_warm = True
            return
        kind = is_first, self.gradients.is_narrow, casts, self.gradients.find_address()
        if kind not in self.recordings:
            with failures_located(module.graph):
                self.recordings[kind] = self.record(lambda: module(*values))
        recording = self.recordings[kind]
        self.recorder.replay(recording.graph)
        self.outputs.loss = recording.loss
        self.gradients.restore(recording.gradients)
        float8.restore(recording.float8)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Run whole updates op by op; a recording adds to gradients that a recording began, and to no others."""
        assert self.gradients.is_empty, "an update has begun"
        self.is_unrecorded = True
        try:
            yield
        finally:
            self.is_unrecorded = False

    def find_missing_memory(self) -> int:
        """Bytes that a call op by op lacks beside the recordings."""
        return self.recorder.find_missing_memory() if self.recordings else 0

    def record(self, run: Callable[[], None]) -> RecordedGraph:
        """Record, and remember where the results will be."""
        graph = self.recorder.record(run, self.pool)
        assert self.outputs.loss is not None
        return RecordedGraph(graph, self.outputs.loss, self.gradients.taken(), dict(self.program.float8.values))

    def close(self) -> None:
        """Drop the recordings before the communicators inside of them are destroyed."""
        self.recorder.close()
        self.recordings = {}
        self.program.close()
