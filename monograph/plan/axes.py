"""What a plan may choose: the degrees of the mesh, the micro-batch, and how memory is traded for time. Without torch.

Degrees are a table: an axis that the configuration accepts is searched, one that it refuses is left out with the
reason, so a new axis is one line here.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from monograph.config.configurable import check_config
from monograph.errors import ConfigError
from monograph.machine.device import Machine
from monograph.parallel.mesh import Mesh
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh

SaveMode = Literal["none", "selective", "full", "min_cut", "budget"]
POLICIES: dict[str, tuple[SaveMode, ...]] = {
    "exact": ("none", "selective", "full"),
    "fast": ("none", "min_cut", "full"),
    "float8": ("none", "min_cut", "full"),
}
"""Values of `activation_checkpoint.mode` that are tried, by the class of numerics."""
MOST_SEQUENCES = 16
"""In a micro-batch."""


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


@dataclass(frozen=True)
class Candidate:
    """One way to run a recipe on so many devices."""

    config: TrainerConfig
    mesh: Mesh
    sequences: int
    """In a micro-batch."""
    policy: str
    reshard: bool
    micro_batches: int
    """In one update, on one rank."""


def find_closed_axes(config: TrainerConfig) -> dict[str, str]:
    """Axes that the configuration refuses whatever the degree, with its reason."""
    closed: dict[str, str] = {}
    for axis in AXES:
        try:
            config.parallelism.replace(**{axis.field: 2}).check()
        except ConfigError as error:
            closed[axis.short] = error.why or error.what
    if config.model.find_moe() is None:
        closed |= dict.fromkeys(("ep", "etp"), "the model has no routed experts")
    return closed


def list_candidates(
    config: TrainerConfig, gpus: int, machine: Machine, fixed: Mapping[str, object]
) -> Iterator[Candidate]:
    """Every combination that the configuration accepts; `fixed` has what the user decided, by dotted name."""
    closed = find_closed_axes(config)
    choices = [list(_list_degrees(axis, config, gpus, machine, closed, fixed)) for axis in AXES]
    for degrees in itertools.product(*choices):
        named = {axis.field: degree for axis, degree in zip(AXES, degrees, strict=True)}
        ranks = named["pipeline_parallel_degree"] * named["context_parallel_degree"] * named["tensor_parallel_degree"]
        if gpus % (ranks * named["data_parallel_replicate_degree"]):
            continue
        shard = gpus // (ranks * named["data_parallel_replicate_degree"])
        if fixed.get("parallelism.data_parallel_shard_degree", shard) not in (shard, -1):
            continue
        experts = named["expert_parallel_degree"] * named["expert_tensor_parallel_degree"]
        together = shard * named["context_parallel_degree"] * named["tensor_parallel_degree"]
        if together % experts or named["expert_tensor_parallel_degree"] not in (1, named["tensor_parallel_degree"]):
            continue  # said by the configuration too, but not a thousand times a second
        meshed = config.replace(parallelism=config.parallelism.replace(**named, data_parallel_shard_degree=shard))
        stage = meshed.replace(
            training=meshed.training.replace(local_batch_size=1, global_batch_size=-1),
            parallelism=meshed.parallelism.replace(pipeline_parallel_degree=1),
        )
        stages = named["pipeline_parallel_degree"]
        try:  # schedules and stages take a second to check: that is left to the candidates that are captured
            mesh = replace(plan_run_mesh(stage, gpus // stages), pp=stages)
        except ConfigError:
            continue
        yield from _list_batches(meshed, mesh, gpus, fixed)


def _list_degrees(
    axis: PlanAxis,
    config: TrainerConfig,
    gpus: int,
    machine: Machine,
    closed: Mapping[str, str],
    fixed: Mapping[str, object],
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


def _list_batches(config: TrainerConfig, mesh: Mesh, gpus: int, fixed: Mapping[str, object]) -> Iterator[Candidate]:
    """The micro-batches and memory policies that a mesh allows."""
    wanted, local = config.training.global_batch_size, config.training.local_batch_size
    whole = wanted if wanted != -1 else local * gpus
    sequences = 1
    while sequences <= MOST_SEQUENCES and whole % (sequences * mesh.data_parts) == 0:
        if fixed.get("training.local_batch_size", sequences) == sequences:
            training = config.training.replace(local_batch_size=sequences, global_batch_size=whole)
            micro_batches = whole // (sequences * mesh.data_parts)
            if micro_batches < mesh.pp:
                return  # most of a pipeline would wait
            yield from _list_policies(config.replace(training=training), mesh, sequences, micro_batches, fixed)
        sequences *= 2


def _list_policies(
    config: TrainerConfig, mesh: Mesh, sequences: int, micro_batches: int, fixed: Mapping[str, object]
) -> Iterator[Candidate]:
    policies: tuple[SaveMode, ...] = POLICIES[config.compile.numerics]
    if "activation_checkpoint.mode" in fixed:
        policies = (config.activation_checkpoint.resolve(config.compile),)
    reshards = (True, False) if "parallelism.reshard_after_forward" not in fixed else (None,)
    for policy, reshard in itertools.product(policies, reshards):
        activations = config.activation_checkpoint.replace(mode=policy)
        kept = config.parallelism.reshard_after_forward if reshard is None else reshard
        if not kept and mesh.fsdp == 1 and mesh.efsdp == 1 and reshard is not None:
            continue  # nothing is gathered
        parallelism = config.parallelism.replace(reshard_after_forward=kept)
        chosen = config.replace(activation_checkpoint=activations, parallelism=parallelism)
        yield Candidate(chosen, mesh, sequences, policy, kept, micro_batches)


def check_candidate(candidate: Candidate) -> str:
    """Why the configuration as a whole is refused; empty when it is not."""
    mesh = candidate.mesh
    few = min(candidate.micro_batches, 2 * mesh.pp)  # a schedule of thousands of micro-batches takes seconds to check
    training = candidate.config.training.replace(global_batch_size=candidate.sequences * mesh.data_parts * few)
    try:
        check_config(candidate.config)
        plan_run_mesh(candidate.config.replace(training=training), mesh.world_size)
    except ConfigError as error:
        return error.what
    return ""
