"""A first guess of time and memory without a graph: it decides which candidates are worth a capture.

One captured step of the recipe on one rank says what a block computes and saves; the guess scales it with the degrees.
"""

from dataclasses import dataclass

from monograph.axes import Axis, Group
from monograph.machine.device import Machine
from monograph.plan.axes import Candidate

_BFLOAT16, _FLOAT32 = 2, 4
_POLICY_COST = {"none": 0.92, "selective": 1.0, "min_cut": 1.0, "full": 1.25}
"""Compute of a step, relative to selective."""
_POLICY_SAVED = {"none": 2.0, "selective": 1.0, "min_cut": 0.8}
MARGIN = 0.03
"""Of the peak: fragments that the allocator cannot use."""
CONTEXT_BYTES = 1 << 30
"""The CUDA context, cuBLAS and cuDNN."""
COMMUNICATOR_BYTES = 96 << 20
"""Buffers of one NCCL communicator."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the first guess knows of a model: from its parameters, and from one capture with a micro-batch of one."""

    dense: int
    """Parameters outside of routed experts."""
    experts: int
    blocks: int
    dim: int
    seq_len: int
    routed: float
    """Routed rows per token."""
    compute_seconds: float
    """Of one sequence on one rank, selective."""
    saved_bytes: int
    """Of one sequence on one rank, selective."""
    working_bytes: int


@dataclass(frozen=True)
class RoughEstimate:
    """Seconds of an update and bytes on one rank."""

    seconds: float
    bytes: float


def count_reserved(candidate: Candidate, peak: float) -> float:
    """What the device needs besides what the allocator hands out: fragments, context, communicators."""
    groups = [group for group in Group if candidate.mesh.group_size(group) > 1]
    return MARGIN * peak + CONTEXT_BYTES + COMMUNICATOR_BYTES * len(groups)


def guess(candidate: Candidate, facts: ModelFacts, machine: Machine) -> RoughEstimate:
    """The guess for one candidate."""
    mesh, sequences = candidate.mesh, candidate.sequences
    split = mesh.tp * mesh.cp
    dense, experts = facts.dense / mesh.pp, facts.experts / mesh.pp
    local = dense / (mesh.fsdp * mesh.tp) + experts / (mesh.efsdp * mesh.ep * mesh.etp)
    gathered = dense / mesh.tp + experts / (mesh.ep * mesh.etp)
    compute = facts.compute_seconds * sequences / split / mesh.pp * _POLICY_COST[candidate.policy]
    waits = _guess_waits(candidate, facts, machine, compute, gathered)
    bubble = (candidate.micro_batches + mesh.pp - 1) / candidate.micro_batches
    update = machine.memory_seconds(local * _FLOAT32 * 8)
    saved = facts.saved_bytes * sequences / split / mesh.pp * min(mesh.pp, candidate.micro_batches)
    block = _BFLOAT16 * sequences * facts.seq_len * facts.dim / split * facts.blocks / mesh.pp
    saved = block if candidate.policy == "full" else saved * _POLICY_SAVED[candidate.policy]
    whole = 0 if candidate.reshard else gathered * _BFLOAT16
    working = facts.working_bytes * sequences / split + 2 * gathered / facts.blocks * mesh.pp * _BFLOAT16
    peak = local * _FLOAT32 * 4 + saved + working + whole
    return RoughEstimate(candidate.micro_batches * bubble * (compute + waits) + update, peak)


def _guess_waits(candidate: Candidate, facts: ModelFacts, machine: Machine, compute: float, gathered: float) -> float:
    """Collectives of parameters hide behind compute as far as it lasts; those of activations do not."""
    mesh, sequences = candidate.mesh, candidate.sequences
    tokens = sequences * facts.seq_len / (mesh.tp * mesh.cp)
    rounds = 3 if candidate.reshard else 2
    moved = rounds * gathered * _BFLOAT16
    hidden = 0.0
    if mesh.fsdp > 1:
        hidden = machine.collective_seconds(moved, mesh.group_span(Group.FSDP_GATHER), ranks=mesh.fsdp)
    if mesh.dp_replicate > 1:
        shard = 2 * _FLOAT32 * gathered / max(mesh.fsdp, 1)
        span = mesh.group_span(Group.DP_REPLICATE)
        hidden += machine.collective_seconds(shard, span, ranks=mesh.degree(Axis.DP_REPLICATE))
    exposed = max(0.0, hidden - compute)
    blocks = facts.blocks / mesh.pp
    if mesh.tp > 1:
        sent = 8 * _BFLOAT16 * tokens * (mesh.tp - 1) * facts.dim
        exposed += blocks * machine.collective_seconds(sent, mesh.group_span(Group.TP), ranks=mesh.tp)
    if mesh.ep > 1:
        sent = 5 * _BFLOAT16 * tokens * facts.routed * facts.dim * (mesh.ep - 1) / mesh.ep
        span = mesh.group_span(Group.EP)
        exposed += blocks * machine.collective_seconds(sent, span, ranks=mesh.ep, is_all_to_all=True)
    if mesh.cp > 1:
        sent = 4 * _BFLOAT16 * tokens * (mesh.cp - 1) * facts.dim
        exposed += blocks * machine.collective_seconds(sent, mesh.group_span(Group.CP), ranks=mesh.cp)
    return exposed
