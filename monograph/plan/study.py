"""What a plan knows of a model before it looks at meshes: its kinds of blocks, its stages, and one captured step."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from monograph.errors import ConfigError
from monograph.execute.pipeline.build import plan_model_stages
from monograph.machine.device import Machine
from monograph.models.flops import FlopsPerToken, count_unit_flops
from monograph.models.freeze import freeze
from monograph.models.model import Model
from monograph.parallel.config import ParallelismConfig
from monograph.plan.depth import ReducedDepth, find_reduced_depth
from monograph.plan.measure import StepEstimate, capture_step, estimate_whole
from monograph.plan.pipeline import StageUnits
from monograph.plan.rough import ModelFacts
from monograph.train.config import TrainerConfig

_COUNTED_RANKS = 8
"""Expert-parallel ranks of the capture that guesses are scaled from: rows that travel are saved twice."""


@dataclass(frozen=True)
class ModelStudy:
    """A model on paper."""

    depth: ReducedDepth
    units: int
    flops: FlopsPerToken
    """Of a token."""
    stages: dict[int, StageUnits]
    """Number of stages -> for each of them, the captured units that cost as much as its own."""
    shares: dict[int, tuple[float, ...]]
    """Number of stages -> the part of all operations in each."""
    dense: int
    """Parameters outside of routed experts."""
    experts: int


def study_model(config: TrainerConfig, stage_counts: Iterable[int]) -> ModelStudy:
    """Build the model without memory and look at its parts; `stage_counts`: into how many stages to divide it."""
    with torch.device("meta"):
        model: Model = config.model.build()
    freeze(model, config.training.freeze)
    depth = find_reduced_depth(config.model, model)
    seq_len = config.training.seq_len
    modules = model.unit_modules()
    costs = {path: found.causal_attention for path, found in count_unit_flops(modules, seq_len).items()}
    captured = _find_captured_units(list(modules), list(model.blocks()), depth)
    stages, shares = {}, {}
    for count in stage_counts:
        try:
            plan = plan_model_stages(model, count, config.parallelism.pipeline_stages, seq_len=seq_len)
        except ConfigError:
            continue
        stages[count] = tuple(tuple(captured[unit] for unit in units) for units in plan.stages)
        shares[count] = tuple(sum(costs[unit] for unit in units) / sum(costs.values()) for units in plan.stages)
    routed = [module for module in model.modules() if getattr(module, "used_share", 1.0) < 1.0]
    experts = sum(weight.numel() for module in routed for weight in module.parameters())
    total = sum(weight.numel() for weight in model.parameters())
    return ModelStudy(depth, len(modules), model.flops(seq_len), stages, shares, total - experts, experts)


def _find_captured_units(units: list[str], blocks: list[str], depth: ReducedDepth) -> dict[str, str]:
    """Unit of the whole model -> the captured one that stands for it."""
    known = dict(zip(blocks, (blocks[index] for index in depth.stands_for), strict=True))
    return {unit: known.get(unit, unit) for unit in units}


def capture_reference(config: TrainerConfig, machine: Machine, depth: ReducedDepth) -> StepEstimate:
    """One sequence on one rank, or on as many as experts are usually spread over."""
    moe = config.model.find_moe()
    ranks = _COUNTED_RANKS if moe is not None and moe.n_experts % _COUNTED_RANKS == 0 else 1
    mode = "selective" if config.compile.numerics == "exact" else "min_cut"
    alone = config.replace(
        parallelism=ParallelismConfig(expert_parallel_degree=ranks),
        training=config.training.replace(local_batch_size=1, global_batch_size=-1),
        activation_checkpoint=config.activation_checkpoint.replace(mode=mode, save=(), budget_gib=0.0),
        compile=config.compile.replace(expert_overlap=config.compile.expert_overlap.replace(strategy="off")),
    )
    return estimate_whole(capture_step(alone, machine, depth, world_size=ranks), alone, 1, machine)


def find_model_facts(config: TrainerConfig, study: ModelStudy, step: StepEstimate) -> ModelFacts:
    """What guesses are made from."""
    moe = config.model.find_moe()
    return ModelFacts(
        dense=study.dense,
        experts=study.experts,
        blocks=max(1, study.depth.total),
        dim=int(getattr(config.model, "dim", 1)),
        seq_len=config.training.seq_len,
        routed=float(moe.router.top_k) if moe is not None else 0.0,
        compute_seconds=step.compute_seconds,
        saved_bytes=step.memory.most_saved,
        working_bytes=step.memory.working,
        state_ratio=config.find_state_ratio(),
        shares=study.shares,
    )
