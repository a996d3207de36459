"""One choice, estimated from its real graph: captured with few blocks as one fake rank, with all of its passes.

A pipeline is captured as if it had one stage; its stages are put together from the units of that graph, for as many
schedules as are asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from monograph.axes import Group
from monograph.execute.facts import make_facts
from monograph.graph.cost import find_node_costs
from monograph.graph.facts import Facts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.step_graph import StepGraph
from monograph.graph.timeline import find_timeline
from monograph.machine.device import Machine
from monograph.models.freeze import find_matching
from monograph.parallel.groups import fake_groups
from monograph.passes.runner import build_passes
from monograph.plan.choice import NO_LIMIT_GIB, PipelineChoice, RunChoice, configure
from monograph.plan.depth import ReducedDepth
from monograph.plan.memory import MemoryParts, StepMemory, find_memory_parts, map_memory
from monograph.plan.pipeline import StageUnits, estimate_pipeline
from monograph.plan.units import UnitCost, add_units, find_unit_costs, wait_for_host
from monograph.run import build_source, capture_and_optimize, make_example
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.train.optimizer_config import ITEM_BYTES

FUSED_FRACTION = 0.7
"""What torch's fused AdamW reaches of the memory's rate; measured on one H200: 2.9 and 3.5 of 4.3 TB/s."""


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """One micro-batch on one rank (of a pipeline: the one that computes longest), and the update after the last."""

    compute_seconds: float
    exposed_seconds: Mapping[str, float]
    """By group: how long compute waits for its collectives."""
    collective_seconds: Mapping[str, float]
    """Length of the collectives of each group, whether or not compute waits for them."""
    optimizer_seconds: float
    memory: MemoryParts
    bubble_seconds: float = 0.0
    """How long it waits for other stages in one update."""
    idle_seconds: float = 0.0
    """The same on average over all ranks."""
    offloaded_bytes: int = 0
    """What waits in the host's memory, of one micro-batch."""

    @property
    def step_seconds(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.compute_seconds + sum(self.exposed_seconds.values())


@dataclass(frozen=True)
class CapturedCost:
    """What a captured step costs: unit by unit, and all of its memory."""

    units: dict[str, UnitCost]
    memory: StepMemory
    extra: dict[str, float]
    """A captured block -> blocks of the whole model that are like it and are not captured."""


def measure_choice(
    base: TrainerConfig,
    choice: RunChoice,
    pipelines: Sequence[PipelineChoice],
    machine: Machine,
    depth: ReducedDepth,
    stages: Mapping[int, StageUnits],
) -> list[StepEstimate]:
    """Capture it once and estimate it with each of these schedules; `stages` has the stages, by their number."""
    config = configure(base, choice, pipelines[0])
    captured = capture_step(config, machine, depth, world_size=choice.mesh.world_size // choice.mesh.pp)
    if choice.mesh.pp == 1:
        return [estimate_whole(captured, config, choice.micro_batches, machine)]
    return [estimate_stages(captured, config, choice, each, machine, stages) for each in pipelines]


def capture_step(config: TrainerConfig, machine: Machine, depth: ReducedDepth, *, world_size: int) -> CapturedCost:
    """A step of the model with few blocks, on one pipeline stage's ranks."""
    host = config.passes.offload_activations
    if 0 < host.budget_gib < NO_LIMIT_GIB and depth.blocks:
        host = host.replace(budget_gib=host.budget_gib * depth.blocks / depth.total)
    model = depth.reduce(config.model.for_device(machine.device))
    with torch.device("meta"):
        frozen = find_matching(model.build(), config.training.freeze)
    reduced = config.replace(
        model=model,
        parallelism=config.parallelism.replace(pipeline_parallel_degree=1),
        training=config.training.replace(global_batch_size=-1, freeze=frozen),
        passes=config.passes.replace(offload_activations=host),
    )
    mesh = plan_run_mesh(reduced, world_size)
    with fake_groups(mesh, 0, torch.device("cpu")) as groups:
        source, settings = build_source(reduced, groups)
        settings = replace(settings, machine=machine)  # also where it is not the one of that name in the table
        facts = make_facts(source.table, groups, settings)
        passes = build_passes(settings.passes, settings.compile.numerics)
        given = (source, make_example(reduced, source), facts, passes)
        graph = capture_and_optimize(*given, is_measured=False, is_checked=False).graph  # it is not going to run
        blocks = list(source.model.blocks())
        return count_step(
            graph,
            facts,
            {slot.name: slot.unit for slot in source.table},
            list(source.model.unit_modules()),
            {blocks[block]: float(count) for block, count in depth.extra.items()},
        )


def count_step(
    graph: StepGraph, facts: Facts, parameters: Mapping[str, str], units: list[str], extra: dict[str, float]
) -> CapturedCost:
    """Time and memory of a graph by unit; `parameters` has each parameter's unit."""
    inside = graph.module.graph
    sizes = LikelySizes(inside)
    timeline = find_timeline(inside, find_node_costs(inside, sizes, facts).seconds)
    memory = map_memory(graph, sizes, parameters, reduce_dtype=facts.reduce_dtype)
    return CapturedCost(find_unit_costs(graph, sizes, timeline, memory, units), memory, extra)


def estimate_whole(captured: CapturedCost, config: TrainerConfig, micro_batches: int, machine: Machine) -> StepEstimate:
    """A step without a pipeline: middle blocks count as often as they occur."""
    units, extra = captured.units, captured.extra
    total = add_units((cost, 1.0 + extra.get(name, 0.0)) for name, cost in units.items())
    waiting = wait_for_host(total, machine)
    ratio = config.find_state_ratio()
    is_recorded = machine.device == "cuda" and config.compile.cuda_graph != "off"
    memory = find_memory_parts(
        captured.memory, extra, state_ratio=ratio, is_accumulating=micro_batches > 1, is_recorded=is_recorded
    )
    late = int(waiting.saved_bytes - total.saved_bytes)
    if late:
        memory = replace(memory, saved=memory.saved + late, most_saved=memory.most_saved + late)
    return _make_estimate(waiting, memory, machine, config)


def estimate_stages(
    captured: CapturedCost,
    config: TrainerConfig,
    choice: RunChoice,
    pipeline: PipelineChoice,
    machine: Machine,
    stages: Mapping[int, StageUnits],
) -> StepEstimate:
    """A step of a pipeline, with one of its schedules."""
    mesh = choice.mesh
    tokens = choice.sequences * config.training.seq_len / (mesh.cp * mesh.tp)
    sent = tokens * float(getattr(config.model, "dim", 1)) * ITEM_BYTES[config.training.compute_dtype]
    found = estimate_pipeline(
        pipeline,
        ranks=mesh.pp,
        micro_batches=choice.micro_batches,
        units=captured.units,
        stages=stages[mesh.pp * pipeline.virtual_stages],
        machine=machine,
        transfer_seconds=machine.collective_seconds(sent, 1 + mesh.group_size(Group.STAGE), ranks=2),
        state_ratio=config.find_state_ratio(),
        sent_bytes=int(sent),
    )
    estimate = _make_estimate(found.busiest, found.memory, machine, config)
    return replace(estimate, bubble_seconds=found.bubble_seconds, idle_seconds=found.idle_seconds)


def _make_estimate(cost: UnitCost, memory: MemoryParts, machine: Machine, config: TrainerConfig) -> StepEstimate:
    return StepEstimate(
        compute_seconds=cost.compute_seconds,
        exposed_seconds=dict(cost.waits),
        collective_seconds=dict(cost.collective_seconds),
        optimizer_seconds=estimate_update(memory, machine, config),
        memory=memory,
        offloaded_bytes=int(cost.offloaded_bytes),
    )


def estimate_update(memory: MemoryParts, machine: Machine, config: TrainerConfig) -> float:
    """The gradient norm and AdamW: weights and both moments are read and written, gradients read twice."""
    touched = 2 * (memory.parameters + memory.optimizer) + 2 * memory.gradients
    is_single_pass = config.plan_optimizer().is_single_pass
    return machine.memory_seconds(touched) / (1.0 if is_single_pass else FUSED_FRACTION)
