"""From a graph to something that runs: op by op, or as one CUDA graph."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from monograph.errors import ConfigError
from monograph.execute.artifact.load import Artifact
from monograph.execute.base import StepSettings
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.cudagraph import CudaGraphProgram, CudaGraphRecorder
from monograph.execute.custom_kernels import (
    UPDATE,
    KernelCall,
    build_calls,
    find_calls,
    find_tunable_calls,
    find_updates,
)
from monograph.execute.device import check_allocator
from monograph.execute.gradients import Gradients
from monograph.execute.outputs import LossBuffer
from monograph.execute.program import Program
from monograph.execute.replay_watchdog import ReplayWatchdog
from monograph.execute.tuned_kernels import tune_kernels
from monograph.graph.inputs import StepInputs
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.log import get_log
from monograph.parallel.groups import Groups
from monograph.passes.runner import OptimizedGraph

log = get_log("graph")
StepProgram = Program | CudaGraphProgram
COPIES_THROUGH_HOST = "the ranks share a GPU, and gloo, which serves them, copies through the host"


def build_program(
    graph: StepGraph,
    inputs: StepInputs,
    outputs: LossBuffer,
    cache: CastWeightCache,
    recorder: CudaGraphRecorder | None,
) -> StepProgram:
    """A captured step or evaluation, ready to run on inputs of these shapes; recorded where there is a recorder and
    every node can be."""
    program = Program(graph, outputs, inputs, cache)
    is_watched = any(spec.kind is OutputKind.PROBED for spec in graph.outputs)
    if recorder is None or is_watched or not recorder.accepts(graph):
        return program
    return CudaGraphProgram(program, outputs, recorder)


def make_recorder(settings: StepSettings, groups: Groups) -> CudaGraphRecorder | None:
    """What records CUDA graphs; None where they are switched off, or `auto` finds no GPU or ranks that share one."""
    wanted = settings.compile.cuda_graph
    if wanted == "off" or (wanted == "auto" and groups.device.type != "cuda"):
        return None
    if groups.copies_through_host:
        if wanted == "require":
            raise ConfigError(
                "compile.cuda_graph is require",
                why=COPIES_THROUGH_HOST,
                do="give every rank a GPU; or --compile.cuda_graph auto",
            )
        log.info("no CUDA graph is used: %s", COPIES_THROUGH_HOST)
        return None
    watchdog = None
    check_allocator(groups.device, groups.mesh.world_size)
    if groups.has_peers and groups.device.type == "cuda":
        watchdog = ReplayWatchdog(timeout_seconds=groups.timeout_seconds, rank=groups.rank, device=groups.device)
    return CudaGraphRecorder(groups.device, is_required=wanted == "require", watchdog=watchdog)


def make_gradients(parameters: Mapping[str, Tensor], step: OptimizedGraph, reduce_dtype: torch.dtype) -> Gradients:
    """Where the gradients of a step are added up; a lone one stays in the dtype it is returned in, if a pass made it
    narrow."""
    return Gradients(parameters, reduce_dtype=reduce_dtype, keeps_dtype="narrow_gradients" in step.ran)


def load_or_build_kernels(
    graphs: Sequence[StepGraph], settings: StepSettings, groups: Groups, artifact: Artifact | None
) -> None:
    """Have the custom kernels of steps ready before they run: tuned, if that is asked for, then taken from the artifact
    or built here."""
    if artifact is not None:
        artifact.use_tuned_settings(groups.device)
    if settings.compile.tune_kernels:
        tune_kernels(dict.fromkeys(call for graph in graphs for call in find_tunable_calls(graph)), groups.device)
    if artifact is None or not artifact.load_custom_kernels():
        build_calls([call for graph in graphs for call in find_custom_calls(graph, settings)])


def find_custom_calls(graph: StepGraph, settings: StepSettings) -> list[KernelCall]:
    """Custom kernels that a step will launch: known before it runs, they are compiled in parallel."""
    found = find_updates(graph, settings.update_state, settings.sum_dtype)
    updates = [call for call in found if settings.is_single_pass or call.name != UPDATE]
    return [*find_calls(graph), *updates]
