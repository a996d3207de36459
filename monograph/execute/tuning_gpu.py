"""Where kernels are tuned: launches on random tensors, timed as replays of CUDA graphs, in interleaved rounds."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from monograph.execute.custom_kernels import KernelCall, make_tensor
from monograph.execute.tune_kernels import Run
from monograph.execute.tuning_inputs import make_arguments
from monograph.graph.tensor_meta import TensorMeta
from monograph.kernels.catalog import find_kernel_ops
from monograph.kernels.custom_op import CustomOp
from monograph.kernels.launch import only_built

_ROUNDS = 9
_WINDOW_MS = 2.0
"""How long the replays of one run take in one round, about."""
_MOST_REPLAYS = 100


class TuningGpu:
    """The GPU that the process uses; see `tune_kernels.TuningDevice`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.ops = {op.name: op for op in find_kernel_ops()}

    def prepare(self, call: KernelCall) -> Run:
        """A run for `build`: on tensors without memory, where an op is built from such."""
        op = self.ops[call.name]
        if op.prebuild:
            args = [make_tensor(arg) if isinstance(arg, TensorMeta) else arg for arg in call.args]
            return partial(find_launcher(op), *args)
        return lambda: self.make_run(call)()

    def build(self, runs: Sequence[Run]) -> None:
        """Several at a time."""
        with only_built(ignore_errors=True):
            for run in runs:
                run()

    def make_run(self, call: KernelCall) -> Run:
        """The op on random tensors."""
        op = self.ops[call.name]
        names = [each.name for each in op.op._schema.arguments]
        return partial(find_launcher(op), *make_arguments(names, call.args, self.device))

    def measure(self, runs: Sequence[Run]) -> list[list[float]]:
        """Replays of each run between two events, one run after the other in every round."""
        graphs = [record_graph(run) for run in runs]
        replay(graphs[0], 3)
        replays = min(_MOST_REPLAYS, max(1, round(_WINDOW_MS / replay(graphs[0], 3))))
        return [[replay(graph, replays) for graph in graphs] for _ in range(_ROUNDS)]


def find_launcher(op: CustomOp) -> Run:
    """What launches the op's kernels."""
    launcher = op.launcher
    assert launcher is not None, "of an op with a kernel"
    return launcher


def record_graph(run: Run) -> torch.cuda.CUDAGraph:
    """The launches of a run, as a CUDA graph. It has run before: nothing is built or loaded while it is recorded."""
    run()
    torch.cuda.synchronize(torch.cuda.current_device())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    return graph


def replay(graph: torch.cuda.CUDAGraph, times: int) -> float:
    """Milliseconds of a replay."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    found: Any = start.elapsed_time(end)
    return float(found) / times
