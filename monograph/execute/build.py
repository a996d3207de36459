"""From a graph to something that runs: op by op, as one CUDA graph, or as a forward and a backward graph."""

from collections.abc import Mapping

from torch import Tensor

from monograph.execute.base import StepSettings
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.cudagraph import CudaGraphProgram, can_record
from monograph.execute.custom_kernels import UPDATE, KernelCall, find_calls, find_updates
from monograph.execute.gradients import Gradients
from monograph.execute.outputs import StepOutputBuffers
from monograph.execute.partition import SplitProgram
from monograph.execute.program import Program
from monograph.execute.replay_watchdog import ReplayWatchdog
from monograph.graph.inputs import StepInputs
from monograph.graph.step_graph import StepGraph
from monograph.parallel.groups import Groups

StepProgram = Program | CudaGraphProgram | SplitProgram


def build_program(
    graph: StepGraph,
    inputs: StepInputs,
    outputs: StepOutputBuffers,
    cache: CastWeightCache,
    settings: StepSettings,
    groups: Groups,
) -> StepProgram:
    """The training step, ready to run on inputs of these shapes."""
    if settings.compile.partition == "min_cut":
        return SplitProgram(graph, inputs.state, inputs)
    program = Program(graph, outputs.take, inputs, cache)
    if not can_record(graph, settings.compile.cuda_graph, groups.device):
        return program
    watchdog = None
    if groups.has_peers:
        watchdog = ReplayWatchdog(timeout_seconds=groups.timeout_seconds, rank=groups.rank)
    return CudaGraphProgram(program, outputs, watchdog)


def make_gradients(parameters: Mapping[str, Tensor], settings: StepSettings) -> Gradients:
    """Where the gradients of a step are added up."""
    return Gradients(parameters, keeps_dtype=settings.passes.narrow_gradients.enabled)


def find_custom_calls(graph: StepGraph, settings: StepSettings) -> list[KernelCall]:
    """Custom kernels that a step will launch: known before it runs, they are compiled in parallel."""
    is_updated = settings.passes.narrow_gradients.enabled  # which only our own optimizer can do
    updates = [call for call in find_updates(graph) if is_updated or call.name != UPDATE]
    return [*find_calls(graph), *updates]
