"""From a graph to something that runs: op by op, or as one CUDA graph."""

from collections.abc import Mapping

from torch import Tensor

from monograph.execute.base import StepSettings
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.cudagraph import CudaGraphProgram, can_record
from monograph.execute.custom_kernels import UPDATE, KernelCall, find_calls, find_updates
from monograph.execute.gradients import Gradients
from monograph.execute.outputs import StepOutputBuffers
from monograph.execute.program import Program
from monograph.execute.replay_watchdog import ReplayWatchdog
from monograph.graph.inputs import StepInputs
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.parallel.groups import Groups

StepProgram = Program | CudaGraphProgram


def build_program(
    graph: StepGraph,
    inputs: StepInputs,
    outputs: StepOutputBuffers,
    cache: CastWeightCache,
    settings: StepSettings,
    groups: Groups,
) -> StepProgram:
    """The training step, ready to run on inputs of these shapes."""
    program = Program(graph, outputs.take, inputs, cache)
    is_recorded = any(spec.kind is OutputKind.RECORDED for spec in graph.outputs)
    if is_recorded or not can_record(graph, settings.compile.cuda_graph, groups.device):
        return program
    watchdog = None
    if groups.has_peers:
        watchdog = ReplayWatchdog(timeout_seconds=groups.timeout_seconds, rank=groups.rank)
    return CudaGraphProgram(program, outputs, watchdog)


def make_gradients(parameters: Mapping[str, Tensor], settings: StepSettings) -> Gradients:
    """Where the gradients of a step are added up."""
    is_narrow = settings.passes.runs("narrow_gradients", settings.compile.numerics)
    return Gradients(parameters, keeps_dtype=settings.is_single_pass and is_narrow)


def find_custom_calls(graph: StepGraph, settings: StepSettings) -> list[KernelCall]:
    """Custom kernels that a step will launch: known before it runs, they are compiled in parallel."""
    updates = [call for call in find_updates(graph) if settings.is_single_pass or call.name != UPDATE]
    return [*find_calls(graph), *updates]
