"""Where a step's time goes: kernel time by module path and by kind, and a trace for a browser.

Every op runs inside a range named after the module it came from. In graph mode the ranges come from the tags of the
graph; a step that was recorded as a CUDA graph is run op by op for this, because a replay is one launch without names.
In the other modes they come from the modules, and backward is found through the numbers autograd gives its ops.
"""

import os
import re
import secrets
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.fx import GraphModule, Interpreter, Node
from torch.profiler import ProfilerActivity, profile, record_function

from monograph import strict_json
from monograph.compat.compiler import find_kernels
from monograph.compat.modules import compiled_calls_in, is_compiled_in_place
from monograph.execute.base import MeshStep
from monograph.execute.cudagraph import CudaGraphProgram
from monograph.execute.graph_step import GraphStep
from monograph.execute.program import Program
from monograph.execute.trace_marks import ELSEWHERE, MARK, STEP_MARK
from monograph.graph.tags import has_tag, tag_of
from monograph.whole_file import write_whole

STEPS = 3
"""Profiled steps; times are per step."""
COMPILED = "triton_"
"""What the names of compiled kernels begin with."""
_NUMBER = re.compile(r"\.\d+(?=[. ])")
KINDS = {
    "compiled": r"triton|cpp_fused",
    "attention": r"flash|fmha|attention|sdpa",
    "grouped matmuls": r"grouped",
    "matmuls": r"gemm|nvjet|cutlass|cublas|xmma|::mm|::bmm|::addmm|splitk|cijk",
    "optimizer": r"adam|foreach|multi_tensor|lpnorm",
    "collectives": r"nccl|c10d",
    "sorting": r"sort|topk|scan|radix|searchsorted",
    "copies": r"memcpy|memset|copy|aten::cat|fill",
}
"""Kind -> what the names of its kernels and ops contain; the first that fits counts."""


@dataclass(frozen=True)
class ProfileRow:
    """One line of a table."""

    name: str
    ms: float
    """A step."""
    calls: float


@dataclass(frozen=True)
class Profile:
    """A step's kernel time, cut three ways; each adds up to the same."""

    by_kind: list[ProfileRow]
    by_path: list[ProfileRow]
    by_kernel: list[ProfileRow]

    @property
    def ms(self) -> float:
        """All of it."""
        return sum(share.ms for share in self.by_kind)


def profile_step(step: MeshStep, run: Callable[[], Any], trace: Path) -> Profile:
    """Run a few steps, write the trace, add up the kernels; a JSON file with all three tables lies beside the trace."""
    is_cuda = step.device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with named_ranges(step):
        run()
        with profile(activities=activities, acc_events=True) as found:
            for _ in range(STEPS):
                with record_function(STEP_MARK):
                    run()
            if is_cuda:
                torch.cuda.synchronize(step.device)
    trace.parent.mkdir(parents=True, exist_ok=True)
    prepared = trace.with_name(f".{secrets.token_hex(4)}.{trace.name}")  # the profiler would follow a link
    try:
        found.export_chrome_trace(str(prepared))
        os.replace(prepared, trace)
    finally:
        prepared.unlink(missing_ok=True)
    result = add_up(list(found.events()), find_kernels(found) if is_cuda else None)
    write_whole(trace.with_suffix("").with_suffix(".shares.json"), strict_json.dump(asdict(result), indent=1) + "\n")
    return result


@contextmanager
def named_ranges(step: MeshStep) -> Iterator[None]:
    """Inside, every op of the step runs in a range with its module's path."""
    with ExitStack() as stack:
        if isinstance(step, GraphStep):
            stack.enter_context(_named_nodes(step))
        else:
            for path, module in find_callable(step.model):
                stack.enter_context(_named_module(module, path))
        yield


@contextmanager
def _named_nodes(step: GraphStep) -> Iterator[None]:
    whole = step.program
    program = whole.program if isinstance(whole, CudaGraphProgram) else whole
    if not isinstance(program, Program):  # cut in two: autograd runs the halves, which have no names to give
        yield
        return
    modules = program.modules
    named = {casts: NamedNodes(module) for casts, module in modules.items()}
    step.program, program.modules = program, named  # type: ignore[assignment]
    try:
        yield
    finally:
        step.program, program.modules = whole, modules


class NamedNodes(Interpreter):
    """Runs a graph node by node, each in a range of its own."""

    def __init__(self, module: GraphModule) -> None:
        super().__init__(module)

    def __call__(self, *values: Any) -> Any:
        return self.run(*values)

    def run_node(self, n: Node) -> Any:
        path = f"{tag_of(n).path or ELSEWHERE} {tag_of(n).direction}" if has_tag(n) else "gradients backward"
        with record_function(MARK + path):
            return super().run_node(n)


def find_callable(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules whose calls can be seen: what is inside of a compiled one cannot."""
    closed: list[str] = []
    for path, module in model.named_modules():
        if not path.startswith(tuple(closed)):
            yield path, module
        if is_compiled_in_place(module):
            closed.append(f"{path}.")


@contextmanager
def _named_module(module: nn.Module, path: str) -> Iterator[None]:
    def around() -> record_function:
        return record_function(f"{MARK}{path or ELSEWHERE} forward")

    if is_compiled_in_place(module):
        with compiled_calls_in(module, around):
            yield
        return
    open_ranges: list[record_function] = []

    def enter(*_: Any) -> None:
        open_ranges.append(around())
        open_ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        open_ranges.pop().__exit__(None, None, None)

    hooks = [module.register_forward_pre_hook(enter), module.register_forward_hook(leave, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


Piece = tuple[Any, str, float]
"""The op that took time, the name of what took it, microseconds."""


def add_up(events: list[Any], kernels: list[tuple[int, str, float]] | None) -> Profile:
    """Every kernel (on a CPU, where there are none: every op's own time) under its kind, its path and its name."""
    forward: dict[int, str] = {}
    for event in events:
        path = find_range(event)
        if path and event.sequence_nr >= 0:
            forward.setdefault(event.sequence_nr, path)
    kinds, paths, names = (defaultdict[str, float](float) for _ in range(3))
    calls: Counter[tuple[str, str]] = Counter()
    for event, name, microseconds in find_pieces(events, kernels):
        path = find_range(event) or find_backward_range(event, forward) or ELSEWHERE
        op = event.name if event is not None else ""
        named = find_kind(f"{name} {op}"), _NUMBER.sub(".*", path), name
        for total, key, label in zip((kinds, paths, names), named, "kpn", strict=True):
            total[key] += microseconds
            calls[label, key] += 1
    tables = [
        [
            ProfileRow(key, total[key] / 1000 / STEPS, calls[label, key] / STEPS)
            for key in sorted(total, key=total.__getitem__)[::-1]
        ]
        for total, label in zip((kinds, paths, names), "kpn", strict=True)
    ]
    return Profile(*tables)


def find_pieces(events: list[Any], kernels: list[tuple[int, str, float]] | None) -> Iterator[Piece]:
    """Every kernel once. CUDA runtime calls are left out, because their ids can be those of ops, and so are host ranges
    that the profiler repeats on the GPU's timeline. (Launching a compiled kernel is a range of the kernel's name.)"""
    if kernels is None:
        for event in events:
            yield from ((event, name, taken) for name, taken in _own_time(event))
        return
    on_host = [event for event in events if event.device_type == DeviceType.CPU]
    ops = {event.id: event for event in on_host if not event.name.startswith("cu")}
    ranges = {event.name for event in on_host}
    for number, name, taken in kernels:
        if name not in ranges or name.startswith(COMPILED):
            yield ops.get(number), name, taken


def _own_time(event: Any) -> list[tuple[str, float]]:
    is_range = event.name.startswith(MARK) or event.name == STEP_MARK
    is_op = not is_range and event.self_cpu_time_total > 0
    return [(event.name, event.self_cpu_time_total)] if is_op else []


def find_range(event: Any) -> str:
    """The innermost range an event lies in; empty when in none."""
    while event is not None:
        if event.name.startswith(MARK):
            return event.name.removeprefix(MARK)
        event = event.cpu_parent
    return ""


def find_backward_range(event: Any, forward: dict[int, str]) -> str:
    """The range of the forward op that autograd goes back over here; empty when there is none."""
    while event is not None:
        if event.sequence_nr in forward:
            return forward[event.sequence_nr].replace(" forward", " backward")
        event = event.cpu_parent
    return ""


def find_kind(name: str) -> str:
    """What a kernel does, told by its name."""
    lowered = name.lower()
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, lowered)), "pointwise and sums")
