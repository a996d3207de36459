"""One candidate, estimated from its real graph: captured with few blocks as one fake rank, with all of its passes."""

from collections import defaultdict
from dataclasses import dataclass

import torch

from monograph.execute.facts import make_facts
from monograph.graph.cost import find_node_costs
from monograph.graph.facts import Facts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import group_of, is_launch
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import find_tag
from monograph.graph.timeline import find_timeline
from monograph.machine.device import Machine
from monograph.parallel.groups import fake_groups
from monograph.passes.runner import build_passes
from monograph.plan.axes import Candidate
from monograph.plan.depth import ReducedDepth
from monograph.plan.memory import MemoryParts, find_memory_parts
from monograph.run import build_source, capture_and_optimize, make_example
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh

FUSED_FRACTION = 0.7
"""What torch's fused AdamW reaches of the memory's rate; measured on one H200: 2.9 and 3.5 of 4.3 TB/s."""


@dataclass(frozen=True)
class StepEstimate:
    """One micro-batch on one rank, and the update after the last of them."""

    compute_seconds: float
    exposed_seconds: dict[str, float]
    """By group: how long compute waits for its collectives."""
    communication_seconds: float
    optimizer_seconds: float
    memory: MemoryParts

    @property
    def step_seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.compute_seconds + sum(self.exposed_seconds.values())


def measure_candidate(candidate: Candidate, machine: Machine, depth: ReducedDepth) -> StepEstimate:
    """Capture one pipeline stage of it and estimate what the whole stage costs."""
    stages = candidate.mesh.pp
    config = candidate.config
    reduced = config.replace(
        model=depth.reduce(config.model.for_device(machine.device)),
        parallelism=config.parallelism.replace(pipeline_parallel_degree=1),
        training=config.training.replace(global_batch_size=-1),
    )
    mesh = plan_run_mesh(reduced, candidate.mesh.world_size // stages)
    with fake_groups(mesh, 0, torch.device("cpu")) as groups:
        source, settings = build_source(reduced, groups)
        facts = make_facts(source.table, groups, settings)
        passes = build_passes(settings.passes, settings.compile.numerics)
        graph = capture_and_optimize(source, make_example(reduced, source), facts, passes, is_measured=False).graph
        extra = count_extra(depth, stages)
        blocks = {slot.name: _find_block(slot.unit, list(source.model.blocks())) for slot in source.table}
        in_flight = min(stages, candidate.micro_batches)
        memory = find_memory_parts(
            *(graph, extra, blocks),
            state_ratio=reduced.find_state_ratio(),
            is_accumulating=candidate.micro_batches > 1,
            in_flight=in_flight,
        )
        return estimate(graph, facts, extra, memory, reduced)


def count_extra(depth: ReducedDepth, stages: int) -> dict[int, float]:
    """Blocks of one stage that are not captured, by the captured block that stands for them; the first stage's."""
    total = sum(depth.extra.values())
    if not total:
        return {}
    missing = depth.total / stages - (depth.total - total)
    return {block: count / total * missing for block, count in depth.extra.items()}


def _find_block(unit: str, paths: list[str]) -> int | None:
    return paths.index(unit) if unit in paths else None


def estimate(
    graph: StepGraph, facts: Facts, extra: dict[int, float], memory: MemoryParts, config: TrainerConfig
) -> StepEstimate:
    """Seconds of a step whose middle blocks count as often as they occur."""
    inside = graph.module.graph
    sizes = LikelySizes(inside)
    costs = find_node_costs(inside, sizes, facts)
    timeline = find_timeline(inside, costs.seconds)
    compute, communication = 0.0, 0.0
    exposed: dict[str, float] = defaultdict(float)
    for span in timeline.spans:
        tag = find_tag(span.node)
        times = 1.0 + (extra.get(tag.block, 0.0) if tag and tag.block is not None else 0.0)
        if is_launch(span.node):
            communication += times * (span.end_seconds - span.start_seconds)
            exposed[group_of(span.node)] += times * span.exposed_seconds
        else:
            compute += times * (span.end_seconds - span.start_seconds)
    waits = {group: seconds for group, seconds in exposed.items() if seconds > 0}
    update = estimate_update(memory, facts.machine, config)
    return StepEstimate(compute, waits, communication, update, memory)


def estimate_update(memory: MemoryParts, machine: Machine, config: TrainerConfig) -> float:
    """The gradient norm and AdamW: weights and both moments are read and written, gradients read twice."""
    touched = 2 * (memory.parameters + memory.optimizer) + 2 * memory.gradients
    is_single_pass = config.plan_optimizer().is_single_pass
    return machine.memory_seconds(touched) / (1.0 if is_single_pass else FUSED_FRACTION)
