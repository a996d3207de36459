"""Search: guess every candidate, capture the most promising ones, rank them by what their graphs cost."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

import torch

from monograph.machine.device import Machine
from monograph.models.flops import FlopsPerToken
from monograph.models.model import Model
from monograph.parallel.mesh import Mesh
from monograph.plan.axes import Candidate, check_candidate, find_closed_axes, list_candidates
from monograph.plan.depth import ReducedDepth, find_reduced_depth
from monograph.plan.measure import StepEstimate, measure_candidate
from monograph.plan.rough import ModelFacts, RoughEstimate, count_reserved, guess
from monograph.train.config import TrainerConfig

Measure = Callable[[Sequence[Candidate]], Iterator[StepEstimate]]
_COUNTED_RANKS = 8
"""Expert-parallel ranks of the capture that guesses are scaled from: rows that travel are saved twice."""
ALLOWANCE = 1.1
"""How far beyond the memory a guess may lie and still be captured: guesses are rough."""


@dataclass(frozen=True)
class PlannedRun:
    """A candidate with what its graph says."""

    candidate: Candidate
    step: StepEstimate
    machine: Machine
    tokens: int
    """Of one update."""
    flops: FlopsPerToken

    @property
    def peak_bytes(self) -> int:
        """What the allocator hands out at the peak, on one device."""
        return self.step.memory.peak

    @property
    def needed_bytes(self) -> float:
        """With fragments, context and communicators."""
        return self.peak_bytes + count_reserved(self.candidate, self.peak_bytes)

    @property
    def bubble_seconds(self) -> float:
        """How long a stage waits for others in one update."""
        return (self.candidate.mesh.pp - 1) * self.step.step_seconds

    @property
    def update_seconds(self) -> float:
        """One update."""
        running = self.candidate.micro_batches * self.step.step_seconds
        return running + self.bubble_seconds + self.step.optimizer_seconds

    @property
    def tokens_per_second(self) -> float:
        """Over all devices."""
        return self.tokens / self.update_seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization, attention counted in full."""
        peak = self.machine.peak_flops(self.candidate.config.training.compute_dtype)
        return self.flops.full_attention * self.tokens_per_second / (peak * self.candidate.mesh.world_size)

    @property
    def limit(self) -> str:
        """What takes most of the time beside compute, or would allow more if it were not there."""
        waits = dict(self.step.exposed_seconds)
        if self.bubble_seconds:
            waits["pipeline bubble"] = self.bubble_seconds / self.candidate.micro_batches
        name = max(waits, key=lambda each: waits[each], default="")
        share = waits[name] / self.step.step_seconds if name else 0.0
        return f"{name} waits {100 * share:.0f} %" if share >= 0.05 else "compute"


@dataclass(frozen=True)
class PlanResult:
    """What a search found."""

    runs: list[PlannedRun]
    """Those that fit, the fastest first."""
    misfits: list[PlannedRun]
    """Those that were captured and do not fit, the smallest first."""
    considered: int
    captured: int
    closed: dict[str, str]
    """Axes that were not searched, and why."""
    depth: ReducedDepth


def search(
    config: TrainerConfig,
    gpus: int,
    machine: Machine,
    fixed: Mapping[str, object],
    *,
    wanted: int = 10,
    jobs: int = 1,
    seconds: float = 60.0,
) -> PlanResult:
    """The best ways to run a recipe on so many devices of a machine.

    Captures go on, the most promising first, until there are enough of them or `seconds` are over.
    """
    depth = find_reduced_depth(config.model)
    candidates = list(list_candidates(config, gpus, machine, fixed))
    with torch.device("meta"):
        model: Model = config.model.build()
    flops = model.flops(config.training.seq_len)
    facts = find_model_facts(config, model, machine, depth)
    guesses = [(guess(each, facts, machine), each) for each in candidates]
    chosen = choose_captures(guesses, machine, wanted)
    tokens = config.training.seq_len

    def planned(candidate: Candidate, step: StepEstimate) -> PlannedRun:
        count = tokens * candidate.sequences * candidate.mesh.data_parts * candidate.micro_batches
        return PlannedRun(candidate, step, machine, count, flops)

    limit = time.perf_counter() + seconds
    with measuring(machine, depth, jobs) as measure:
        runs: list[PlannedRun] = []
        for first in range(0, len(chosen), jobs):
            batch = chosen[first : first + jobs]
            runs += [planned(*each) for each in zip(batch, measure(batch), strict=True)]
            if time.perf_counter() > limit:
                break
        if not any(run.needed_bytes <= machine.memory_bytes for run in runs):
            smallest = sorted(guesses, key=lambda each: each[0].bytes)[:2]
            last = [each for _, each in smallest if each not in chosen]
            runs += [planned(*each) for each in zip(last, measure(last), strict=True)]
    fitting = [run for run in runs if run.needed_bytes <= machine.memory_bytes]
    misfits = [run for run in runs if run.needed_bytes > machine.memory_bytes]
    return PlanResult(
        sorted(fitting, key=lambda run: -run.tokens_per_second)[:wanted],
        sorted(misfits, key=lambda run: run.needed_bytes),
        len(candidates),
        len(runs),
        find_closed_axes(config),
        depth,
    )


def choose_captures(
    guesses: Sequence[tuple[RoughEstimate, Candidate]], machine: Machine, wanted: int
) -> list[Candidate]:
    """The fastest by their guesses among those that may fit, at most two of a mesh, and one that surely fits."""
    room = machine.memory_bytes * ALLOWANCE
    likely = sorted((each for each in guesses if each[0].bytes <= room), key=lambda each: each[0].seconds)
    counts: dict[Mesh, int] = {}
    found: list[Candidate] = []
    for _, candidate in likely:
        if len(found) >= wanted:
            break
        if counts.get(candidate.mesh, 0) < 2 and not check_candidate(candidate):
            counts[candidate.mesh] = counts.get(candidate.mesh, 0) + 1
            found.append(candidate)
    sure = [each for each in likely if each[0].bytes <= 0.75 * machine.memory_bytes and each[1] not in found]
    safe = [each for _, each in sure[:2] if not check_candidate(each)]
    return [*found[:2], *safe, *found[2:]]


def find_model_facts(config: TrainerConfig, model: Model, machine: Machine, depth: ReducedDepth) -> ModelFacts:
    """Parameters by kind, and one capture on one rank."""
    moe = config.model.find_moe()
    shares = [module for module in model.modules() if getattr(module, "used_share", 1.0) < 1.0]
    experts = sum(weight.numel() for module in shares for weight in module.parameters())
    total = sum(weight.numel() for weight in model.parameters())
    ranks = _COUNTED_RANKS if moe is not None and moe.n_experts % _COUNTED_RANKS == 0 else 1
    alone = config.replace(
        parallelism=type(config.parallelism)(expert_parallel_degree=ranks),
        training=config.training.replace(local_batch_size=1, global_batch_size=-1),
        activation_checkpoint=config.activation_checkpoint.replace(
            mode="selective" if config.compile.numerics == "exact" else "min_cut"
        ),
    )
    mesh = Mesh(dp_shard=ranks, ep=ranks)
    step = measure_candidate(Candidate(alone, mesh, 1, "selective", True, 1), machine, depth)
    return ModelFacts(
        dense=total - experts,
        experts=experts,
        blocks=max(1, depth.total),
        dim=int(getattr(config.model, "dim", 1)),
        seq_len=config.training.seq_len,
        routed=float(moe.router.top_k) if moe is not None else 0.0,
        compute_seconds=step.compute_seconds,
        saved_bytes=step.memory.most_saved,
        working_bytes=step.memory.working,
    )


@contextmanager
def measuring(machine: Machine, depth: ReducedDepth, jobs: int) -> Iterator[Measure]:
    """Captures, one after the other or in processes of their own."""
    if jobs == 1:
        yield lambda chosen: (measure_candidate(each, machine, depth) for each in chosen)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield lambda chosen: pool.map(measure_candidate, chosen, itertools.repeat(machine), itertools.repeat(depth))
