"""How fast a step is: modes one after the other in one process, on the same tokens and the same first weights.

The optimizer counts; reading data, checkpoints and logs do not. Times are medians over many steps. Every step has its
own tokens: a batch that is repeated is soon memorized, and matmuls of tiny gradients are faster than
those of a real run. On a GPU the device's own clock is read between steps, and nobody waits for it until the end.
"""

import gc
import itertools
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from monograph import strict_json
from monograph.compat.cuda_memory import free_matmul_workspaces
from monograph.config.configurable import check_config
from monograph.execute.base import MeshStep
from monograph.execute.cudagraph import CudaGraphProgram
from monograph.execute.device import deterministic_kernels, use_device
from monograph.execute.graph_step import GraphStep
from monograph.execute.profile import Profile, profile_step
from monograph.graph.cost import measure
from monograph.graph.facts import Facts
from monograph.log import get_log
from monograph.models.freeze import freeze
from monograph.models.model import BatchTensor, Model
from monograph.parallel.groups import Groups, joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_step, find_peak_flops
from monograph.train.build_optimizer import build_optimizer
from monograph.train.clock import find_clock
from monograph.train.config import TrainerConfig
from monograph.train.measure import find_mfu
from monograph.train.numerics import promise_numerics
from monograph.train.optimizer import Optimizer
from monograph.train.out_of_memory import Holders, find_holders, memory_explained, suggest_less
from monograph.train.startup import Startup
from monograph.train.update import apply_update
from monograph.whole_file import write_output

log = get_log("bench")
AHEAD = 64
"""Batches drawn at once."""


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """What one mode did."""

    mode: str
    numerics: str
    """What the mode promises: bitwise identical to eager, or what rounds differently."""
    ms: float
    """The median step, optimizer included."""
    spread: float
    """Between the quarter and the three-quarter point of all steps, over the median."""
    tokens_per_second: float
    mfu: float | None
    mfu_causal: float | None
    graph_tflops: float | None
    """Operations of the step as it was captured and then planned, recomputation included, before it was compiled; None
    in modes without a graph, and of a graph that was loaded from an artifact."""
    peak_gib: float | None
    """CUDA only: what one process of several modes held cannot be told apart on a CPU."""
    first_step_seconds: float
    first_step_shares: dict[str, float]
    """Seconds of it, by what was done; `graph: ...` is part of `graph`. Compiling is a pass."""
    is_recorded: bool
    """Whether steps are replays of a CUDA graph."""
    compilations: int
    loss: float
    """Of the last step: modes that do the same work end with (nearly) the same."""
    losses: list[float]
    """Of every step from the first on, warm-up included: whether two runs differ by rounding or by more shows in how
    they part."""
    profile: Profile | None = None
    """Where the time goes, when asked for."""


def plan_modes(config: TrainerConfig, modes: Sequence[str]) -> dict[str, TrainerConfig]:
    """Mode -> the configuration it stands for, checked; passes are left to the modes that have any."""
    exact = config.replace(compile=config.compile.replace(mode="graph", numerics="exact"))
    off = {"numerics": "exact", "cuda_graph": "auto"}
    plain = config.replace(compile=config.compile.replace(**off), passes=type(config.passes)())
    regions = exact.passes.mark_regions.replace(regions=("blocks",))
    known = {
        "eager": plain.replace(compile=plain.compile.replace(mode="eager")),
        "layer": plain.replace(compile=plain.compile.replace(mode="layer")),
        "exact": exact,
        "fast": exact.replace(compile=exact.compile.replace(numerics="fast")),
        "float8": exact.replace(compile=exact.compile.replace(numerics="float8")),
        "inductor-regions": exact.replace(passes=exact.passes.replace(mark_regions=regions)),
        "inductor-whole": exact.replace(passes=exact.passes.replace(on=(*exact.passes.on, "compile_whole"))),
    }
    for mode in modes:
        check_config(known[mode])
    return {mode: known[mode] for mode in modes}


def run_modes(
    configs: dict[str, TrainerConfig], *, steps: int, warmup: int, profile: Path | None = None, document_tokens: int = 0
) -> list[BenchRow]:
    """Measure every mode; with a folder for it, profile each as well. Sequences are one document each, or documents of
    `document_tokens`."""
    first = next(iter(configs.values()))
    device = use_device(first.debug.device)
    rows = []
    with deterministic_kernels(first.debug.deterministic), joined_groups(Mesh(), device) as groups:
        for mode, config in configs.items():
            log.info("measuring %s", mode)
            trace = profile / f"{mode}.trace.json" if profile else None
            counts = {"steps": steps, "warmup": warmup, "document_tokens": document_tokens}
            rows.append(run_mode(mode, config, groups, **counts, trace=trace))
            gc.collect()
            if device.type == "cuda":
                free_matmul_workspaces()  # else each mode would start with those of the modes before it
                torch.cuda.empty_cache()
    return rows


def run_mode(
    mode: str,
    config: TrainerConfig,
    groups: Groups,
    *,
    steps: int,
    warmup: int,
    document_tokens: int = 0,
    trace: Path | None = None,
) -> BenchRow:
    """Build a step, warm it up, time it; then, apart from the timing, see where the time goes."""
    device = groups.device
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats(device)
    startup = Startup()
    startup.seconds.clear()
    holders: Holders = {}
    with memory_explained(device, holders, do=suggest_less(config)):
        step = build_step(config, groups, startup)
        holders |= find_holders(step)
        with startup.phase("optimizer"):
            optimizer: Optimizer = build_optimizer(config.plan_optimizer(), step)
        holders |= find_holders(step, optimizer)
        batches = make_batches(config, step, document_tokens)
        with startup.phase("step"):
            loss = step.run(*next(batches))
            synchronize(device)
        with startup.phase("update"):
            apply_update(step, optimizer, loss=loss, lr=config.optimizer.lr, max_norm=config.training.max_norm)
            synchronize(device)
        losses = [loss, *(update(step, optimizer, next(batches), config) for _ in range(warmup))]
        clock = find_clock(device)
        ticks = [clock.stamp()]
        for _ in range(steps):
            losses.append(update(step, optimizer, next(batches), config))
            ticks.append(clock.stamp())
        synchronize(device)
        times = [clock.seconds_between(*pair) for pair in itertools.pairwise(ticks)]
        peak = find_peak_flops(config, groups)
        row = summarize(mode, config, step, times, startup, torch.stack(losses).tolist(), peak)
        if trace:
            where = profile_step(step, lambda: update(step, optimizer, next(batches), config), trace)
            row = replace(row, profile=where)
    step.close()
    return row


class DrawnBatch(NamedTuple):
    """A prepared micro-batch, and the scalars of an update that consists of it alone."""

    inputs: dict[str, Tensor]
    scalars: dict[str, Tensor]


def update(step: MeshStep, optimizer: Optimizer, batch: DrawnBatch, config: TrainerConfig) -> Tensor:
    """One micro-batch and one update."""
    loss = step.run(*batch)
    apply_update(step, optimizer, loss=loss, lr=config.optimizer.lr, max_norm=config.training.max_norm)
    return loss


def make_batches(config: TrainerConfig, step: MeshStep, document_tokens: int = 0) -> Iterator[DrawnBatch]:
    """Random batches without end, the same in every mode; on the device long before they are needed."""
    generator = torch.Generator().manual_seed(config.debug.seed)
    while True:
        drawn = [draw_batch(config, step.model.batch_spec, generator, document_tokens) for _ in range(AHEAD)]
        prepared = [step.prepare(batch) for batch in drawn]
        for inputs, batch in zip(prepared, drawn, strict=True):
            yield DrawnBatch(inputs, step.compute_scalars([batch]))


def draw_batch(
    config: TrainerConfig, specs: Mapping[str, BatchTensor], generator: torch.Generator, document_tokens: int = 0
) -> dict[str, Tensor]:
    """Tensors of a batch: random tokens, each labelled with the next, in one document or in documents of
    `document_tokens`; all else is noise, or zero."""
    sizes = {"batch": config.training.local_batch_size, "sequence": config.training.seq_len}
    found: dict[str, Tensor] = {}
    for name, spec in specs.items():
        shape = spec.shape(**sizes)
        if name == "tokens":
            found[name] = torch.randint(0, config.model.find_vocab_size() or 1, shape, generator=generator)
        elif name == "labels" and "tokens" in found:
            found[name] = found["tokens"].roll(-1, 1)
        elif name == "positions":
            found[name] = (torch.arange(shape[-1]) % (document_tokens or shape[-1])).expand(shape).contiguous()
        elif name == "documents" and document_tokens:
            found[name] = (torch.arange(shape[-1]) // document_tokens).to(spec.dtype).expand(shape).contiguous()
        elif spec.dtype.is_floating_point:
            found[name] = torch.randn(shape, generator=generator).to(spec.dtype)
        else:
            found[name] = torch.zeros(shape, dtype=spec.dtype)
    return found


def synchronize(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def summarize(
    mode: str,
    config: TrainerConfig,
    step: MeshStep,
    times: Sequence[float],
    startup: Startup,
    losses: list[float],
    peak_flops: float,
) -> BenchRow:
    """The numbers of one mode."""
    median = statistics.median(times)
    low, _, high = statistics.quantiles(times, n=4) if len(times) > 1 else (median, median, median)
    with torch.device("meta"):
        model: Model = config.model.build()
    freeze(model, config.training.freeze)
    flops = model.flops(config.training.seq_len)
    rate = config.training.local_batch_size * config.training.seq_len / median
    mfu = find_mfu(flops, rate, peak_flops)
    captured = count_captured_flops(step) if isinstance(step, GraphStep) and step.artifact is None else None
    return BenchRow(
        mode=mode,
        numerics=str(promise_numerics(config, ran=step.ran_passes, device=step.device.type)),
        ms=1000 * median,
        spread=(high - low) / median,
        tokens_per_second=rate,
        mfu=mfu["mfu"],
        mfu_causal=mfu["mfu_causal"],
        graph_tflops=captured / 1e12 if captured is not None else None,
        peak_gib=torch.cuda.max_memory_allocated(step.device) / 2**30 if step.device.type == "cuda" else None,
        first_step_seconds=sum(startup.seconds.values()),
        first_step_shares=startup.seconds | find_graph_build_seconds(step),
        is_recorded=isinstance(step, GraphStep) and isinstance(step.program, CudaGraphProgram),
        compilations=step.compiled_graphs or 0,
        loss=losses[-1],
        losses=losses,
    )


def count_captured_flops(step: GraphStep) -> int:
    """What the graph computes, recomputation included; of a graph that was compiled, before it was."""
    costs = {record.name: record.before for record in step.records}
    before = costs.get("mark_regions") or measure(step.graph, Facts())
    return before.flops


def find_graph_build_seconds(step: MeshStep) -> dict[str, float]:
    """What making a graph consists of: capture, and passes that took a tenth of a second or more."""
    if not isinstance(step, GraphStep):
        return {}
    passes = {record.name: record.seconds for record in step.records if record.seconds >= 0.1}
    return {"graph: capture": step.captured.capture_seconds} | {
        f"graph: {name}": seconds for name, seconds in passes.items()
    }


def write_json(path: Path, rows: Sequence[BenchRow], command: Sequence[str]) -> None:
    """The rows with what is needed to measure them again."""
    gpu = torch.cuda.get_device_name(torch.cuda.current_device()) if torch.cuda.is_available() else None
    text: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": list(command),
        "device": gpu or platform.processor() or platform.machine(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "python": platform.python_version()},
        "rows": [asdict(replace(row, profile=None)) for row in rows],
    }
    write_output(path, strict_json.dump(text, indent=2) + "\n")
