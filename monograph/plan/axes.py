"""What a plan may choose: the degrees of the mesh, the micro-batch, and how memory is traded for time. Without torch.

Degrees are a table: an axis that the configuration accepts is searched, one that it refuses is left out with the
reason, so a new axis is one line here. What the user fixed, by dotted name, is not searched.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from monograph.config.configurable import check_config
from monograph.config.leaves import find_leaves
from monograph.config.origins import Origin
from monograph.errors import ConfigError
from monograph.machine.device import Machine
from monograph.parallel.config import ContextMethod, ParallelismConfig
from monograph.parallel.fit import plan_fitting_mesh
from monograph.parallel.mesh import Mesh
from monograph.parallel.pipeline.builtin import BUILTIN, STAGES_PER_RANK
from monograph.passes.options import Numerics
from monograph.plan.choice import PipelineChoice, RunChoice, SaveMode, configure
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh

Fixed = Mapping[str, object]
"""What the user decided: dotted name -> value."""
POLICIES: dict[Numerics, tuple[SaveMode, ...]] = {
    "exact": ("none", "selective", "full"),
    "fast": ("none", "min_cut", "full"),
    "float8": ("none", "min_cut", "full"),
}
"""Values of `activation_checkpoint.mode` that are tried, by the class of numerics."""
MOST_SEQUENCES = 16
"""In a micro-batch."""
VIRTUAL_STAGES = {"interleaved_1f1b": (2, 4)}
"""Stages of a rank that are tried, where a schedule leaves the choice."""


def find_fixed(config: TrainerConfig, origins: Mapping[str, Origin]) -> Fixed:
    """What the flags of a command line decide."""
    values = {leaf.path: leaf.value for leaf in find_leaves(config)}
    return {path: values[path] for path, origin in origins.items() if origin == "flag" and path in values}


@dataclass(frozen=True)
class PlanAxis:
    """A degree of the mesh that can be searched."""

    short: str
    field: str
    """Of `parallelism`."""
    within_node: bool = False
    """Whether degrees beyond a node's devices are not worth trying: their collectives wait for the network."""
    least_tokens: int = 0
    """Of a sequence on one rank: more ranks than that would have too little to do."""
    most: int = 1 << 20
    """The largest degree that is tried."""


AXES = (
    PlanAxis("pp", "pipeline_parallel_degree", most=16),
    PlanAxis("cp", "context_parallel_degree", least_tokens=4096),
    PlanAxis("tp", "tensor_parallel_degree", within_node=True, least_tokens=256),
    PlanAxis("dp_replicate", "data_parallel_replicate_degree"),
    PlanAxis("ep", "expert_parallel_degree", most=64),
    PlanAxis("etp", "expert_tensor_parallel_degree", within_node=True),
)
"""dp_shard takes the ranks that are left."""


def find_closed_axes(config: TrainerConfig) -> dict[str, str]:
    """Axes that the configuration refuses whatever the degree, with its reason."""
    closed: dict[str, str] = {}
    for axis in AXES:
        try:
            config.parallelism.replace(**{axis.field: 2}).check()
        except ConfigError as error:
            closed[axis.short] = error.why or error.what
    if config.model.find_moe() is None:
        closed |= dict.fromkeys(("ep", "etp"), "no routed experts")
    return closed


def list_choices(config: TrainerConfig, gpus: int, machine: Machine, fixed: Fixed) -> Iterator[RunChoice]:
    """Every combination that the configuration accepts, pipelines apart: their schedules share a capture."""
    for mesh in list_meshes(config, gpus, machine, fixed):
        for sequences, micro_batches in _list_batches(config, mesh, gpus, fixed):
            yield from _list_policies(config, mesh, sequences, micro_batches, fixed)


def list_meshes(config: TrainerConfig, gpus: int, machine: Machine, fixed: Fixed) -> Iterator[Mesh]:
    """The meshes that model and sequence allow."""
    closed = find_closed_axes(config)
    choices = [list(_list_degrees(axis, config, gpus, machine, closed, fixed)) for axis in AXES]
    for pp, cp, tp, replicate, ep, etp in itertools.product(*choices):
        taken = pp * cp * tp * replicate
        if gpus % taken:
            continue
        shard = gpus // taken
        if fixed.get("parallelism.data_parallel_shard_degree", shard) not in (shard, -1):
            continue
        if shard * cp * tp % (ep * etp) or etp not in (1, tp):
            continue  # said by the configuration too, but not a thousand times a second
        for method in _list_methods(config, cp, fixed):
            degrees = ParallelismConfig(
                data_parallel_replicate_degree=replicate,
                data_parallel_shard_degree=shard,
                context_parallel_degree=cp,
                context_parallel_method=method,
                context_parallel_gather=config.parallelism.context_parallel_gather,
                tensor_parallel_degree=tp,
                expert_parallel_degree=ep,
                expert_tensor_parallel_degree=etp,
            )
            sizes = {"seq_len": config.training.seq_len, "local_batch_size": 1, "global_batch_size": -1}
            try:
                mesh = plan_fitting_mesh(degrees, config.model, **sizes, world_size=gpus // pp)
            except ConfigError:
                continue
            yield replace(mesh, pp=pp)


def _list_methods(config: TrainerConfig, cp: int, fixed: Fixed) -> tuple[ContextMethod, ...]:
    if cp == 1 or "parallelism.context_parallel_method" in fixed:
        return (config.parallelism.context_parallel_method,)
    return ("all_gather", "ulysses")


def _list_degrees(
    axis: PlanAxis, config: TrainerConfig, gpus: int, machine: Machine, closed: Mapping[str, str], fixed: Fixed
) -> Iterator[int]:
    path = f"parallelism.{axis.field}"
    if path in fixed:
        yield int(str(fixed[path]))
        return
    degree = 1
    while degree <= gpus:
        tokens = config.training.seq_len // degree
        is_far = degree > (machine.devices_per_node if axis.within_node else axis.most)
        if degree > 1 and (axis.short in closed or is_far or tokens < axis.least_tokens):
            return
        yield degree
        degree *= 2


def _list_batches(config: TrainerConfig, mesh: Mesh, gpus: int, fixed: Fixed) -> Iterator[tuple[int, int]]:
    """Sequences of a micro-batch and micro-batches of an update that a mesh allows."""
    wanted, local = config.training.global_batch_size, config.training.local_batch_size
    whole = wanted if wanted != -1 else local * gpus
    tried = [1 << power for power in range(MOST_SEQUENCES.bit_length())]
    for sequences in [local] if "training.local_batch_size" in fixed else tried:
        micro_batches, rest = divmod(whole, sequences * mesh.data_parts)
        if rest == 0 and micro_batches >= mesh.pp:  # with fewer, most of a pipeline would wait
            yield sequences, micro_batches


def _list_policies(
    config: TrainerConfig, mesh: Mesh, sequences: int, micro_batches: int, fixed: Fixed
) -> Iterator[RunChoice]:
    numerics = config.compile.numerics
    policies = POLICIES[numerics]
    if "activation_checkpoint.mode" in fixed:
        policies = (config.activation_checkpoint.resolve(config.compile),)
    is_gathered = mesh.fsdp > 1 or mesh.efsdp > 1
    reshards: tuple[bool, ...] = (True, False) if is_gathered else (True,)
    if "parallelism.reshard_after_forward" in fixed:
        reshards = (config.parallelism.reshard_after_forward,)
    # Only where it is asked for: on an H200 steps that copy to the host are not recorded, and several times slower.
    offload = config.passes.offload_activations.budget_gib > 0
    for policy, reshard, overlap in itertools.product(policies, reshards, _list_overlaps(config, mesh, fixed)):
        yield RunChoice(mesh, sequences, micro_batches, policy, reshard, numerics, offload, overlap)


def _list_overlaps(config: TrainerConfig, mesh: Mesh, fixed: Fixed) -> tuple[bool, ...]:
    """Chunks round differently: they are searched with the classes of numerics that may, and shown beside others.

    With a pipeline they are used where they are asked for, and not searched.
    """
    can = mesh.ep > 1
    overlap = config.compile.expert_overlap
    if overlap.is_on:
        return (True,) if can else ()
    is_searched = (
        can and mesh.pp == 1 and config.compile.numerics != "exact" and "compile.expert_overlap.strategy" not in fixed
    )
    return (False, True) if is_searched else (False,)


def list_pipelines(
    config: TrainerConfig, pp: int, micro_batches: int, units: int, fixed: Fixed
) -> list[PipelineChoice]:
    """The schedules that a pipeline of so many ranks may have; one entry where there is no pipeline."""
    if pp == 1:
        return [PipelineChoice()]
    asked = config.parallelism
    names = [asked.pipeline_schedule] if "parallelism.pipeline_schedule" in fixed else list(BUILTIN)
    found = []
    for name in names:
        counts = VIRTUAL_STAGES.get(name, (STAGES_PER_RANK.get(name, 1),))
        if "parallelism.pipeline_virtual_stages" in fixed and asked.pipeline_virtual_stages:
            counts = (asked.pipeline_virtual_stages,)
        if name == "interleaved_1f1b" and micro_batches % min(pp, micro_batches):
            continue
        found += [PipelineChoice(name, count) for count in counts if count * pp <= units]
    return found


def list_stage_counts(config: TrainerConfig, gpus: int, fixed: Fixed) -> list[int]:
    """Numbers of stages that pipelines on so many devices may have."""
    path = "parallelism.pipeline_parallel_degree"
    most = next(axis.most for axis in AXES if path.endswith(axis.field))
    degrees = [1 << power for power in range(1, most.bit_length()) if 1 << power <= gpus]
    if path in fixed:
        degrees = [int(str(fixed[path]))]
    fixed_count = config.parallelism.pipeline_virtual_stages
    per_rank = {fixed_count or 1, *STAGES_PER_RANK.values(), *itertools.chain(*VIRTUAL_STAGES.values()), 1}
    return sorted({degree * count for degree in degrees for count in per_rank})


def check_choice(config: TrainerConfig, choice: RunChoice, pipeline: PipelineChoice) -> str:
    """Why the configuration as a whole is refused; empty when it is not."""
    mesh = choice.mesh
    # A schedule of thousands of micro-batches takes seconds to check, and is refused for the reasons of a short one.
    few = min(choice.micro_batches, 2 * mesh.pp)
    asked = configure(config, choice, pipeline)
    short = asked.training.replace(global_batch_size=choice.sequences * mesh.data_parts * few)
    try:
        check_config(asked)
        plan_run_mesh(asked.replace(training=short), mesh.world_size)
    except ConfigError as error:
        return error.what
    return ""
