"""A first guess of time and memory without a graph: it decides which choices are worth a capture.

One captured step of the recipe on few ranks says what a block computes and saves; the guess scales it with the degrees.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from monograph.axes import Group
from monograph.machine.device import Machine
from monograph.parallel.communicators import plan_communicators
from monograph.parallel.mesh import Mesh
from monograph.plan.choice import PipelineChoice, RunChoice

_BFLOAT16, _FLOAT32 = 2, 4
_POLICY_COST = {"none": 0.92, "selective": 1.0, "min_cut": 1.0, "budget": 1.0, "full": 1.25}
"""Compute of a step, relative to selective; a third of that is forward."""
_POLICY_SAVED = {"none": 2.0, "selective": 1.0, "min_cut": 0.8, "budget": 1.0}
_BUBBLES = {"zero_bubble": 1 / 3, "zbv": 0.1}
"""The bubble of schedules that split the backward, relative to that of 1f1b."""
_OVERLAPPED = 0.5
"""Of the experts' all_to_alls, what chunks leave exposed."""
_SUMMED = 2 + 4
"""Bytes of a gradient in use, for each parameter of a block: as it is computed, and as it is summed."""
_GATHERED = _SUMMED + 2 * 2 + 4
"""The same with parameters that are gathered: of this block and the next, and the gradient packed to be scattered."""
MARGIN = 0.03
"""Of the peak: fragments that the allocator cannot use."""
CONTEXT_BYTES = 1 << 30
"""The CUDA context, cuBLAS and cuDNN."""


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
    state_ratio: float
    """Bytes of the optimizer's state for each byte of a parameter."""
    shares: Mapping[int, tuple[float, ...]]
    """Number of pipeline stages -> the part of all operations in each."""

    def find_largest_share(self, pp: int, pipeline: PipelineChoice) -> float:
        """The part of all operations that the busiest pipeline rank has."""
        stages = self.shares[pp * pipeline.virtual_stages]
        if pipeline.schedule == "zbv":
            return max(stages[rank] + stages[-1 - rank] for rank in range(pp))
        return max(sum(stages[rank::pp]) for rank in range(pp))


class RoughEstimate(NamedTuple):
    """Seconds of an update and bytes on one rank, with the schedule that suits best."""

    seconds: float
    bytes: float


def count_reserved(peak: float, communicators: int) -> float:
    """Bytes that the device needs besides what the allocator hands out: fragments, context, communicators."""
    return MARGIN * peak + CONTEXT_BYTES + communicators


@lru_cache(maxsize=4096)
def count_communicators(mesh: Mesh, *, per_node: int, has_overlap: bool) -> int:
    """Estimate what NCCL keeps on the device; groups of exchanges that only overlap uses are not made without it."""
    used = [group for group in Group if has_overlap or group not in (Group.EP_COUNTS, Group.EP_DISPATCH)]
    is_ulysses = mesh.cp_method == "ulysses"
    planned = plan_communicators(mesh, 0, used)
    return sum(each.count_bytes(per_node=per_node, is_ulysses=is_ulysses) for each in planned)


def guess(
    choice: RunChoice, pipelines: Sequence[PipelineChoice], facts: ModelFacts, machine: Machine, room: float
) -> RoughEstimate:
    """The guess for one choice with the fastest of its schedules that needs no more than `room`, or the smallest."""
    mesh, sequences, count, policy, reshard, _, offload, _ = choice
    split = mesh.tp * mesh.cp
    weights = GatheredWeights(facts.dense / mesh.pp / mesh.tp, facts.experts / mesh.pp / (mesh.ep * mesh.etp))
    local = weights.dense / mesh.fsdp + weights.experts / mesh.efsdp
    whole = facts.compute_seconds * sequences / split
    waits = _guess_waits(choice, facts, machine, weights)
    saved = facts.saved_bytes * sequences / split * _POLICY_SAVED.get(policy, 0.0)
    if policy == "full":
        saved = _BFLOAT16 * sequences * facts.seq_len * facts.dim / split * facts.blocks
    copying = machine.host_copy_seconds(saved / mesh.pp) if offload else 0.0
    if offload:
        saved *= 2 * mesh.pp / facts.blocks
    of_block = (weights.dense + weights.experts) * mesh.pp / facts.blocks
    working = facts.working_bytes * sequences / split + of_block * (_GATHERED if mesh.efsdp > 1 else _SUMMED)
    gathered = 0.0 if reshard else _BFLOAT16 * (weights.dense + weights.experts)
    fixed = local * _FLOAT32 * (2 + facts.state_ratio) + working + gathered
    update = machine.memory_seconds(local * _FLOAT32 * 8)
    found = []
    for pipeline in pipelines:
        share = facts.find_largest_share(mesh.pp, pipeline) if mesh.pp > 1 else 1.0
        forward = whole * share / 3
        backward = whole * share * _POLICY_COST[policy] - forward
        step = max(forward, waits.forward, copying) + max(backward, waits.backward, copying)
        step += waits.activations * share * mesh.pp
        bubble, in_flight = _guess_pipeline(pipeline, mesh.pp, count)
        found.append(RoughEstimate((count + bubble) * step + update, fixed + saved * share * in_flight))
    fitting = [each for each in found if each.bytes <= room]
    return min(fitting) if fitting else min(found, key=lambda each: each.bytes)


def _guess_pipeline(pipeline: PipelineChoice, pp: int, micro_batches: int) -> tuple[float, float]:
    """The bubble in steps of one rank, and the micro-batches that it holds."""
    name, per_rank = pipeline
    bubble = (pp - 1) * _BUBBLES.get(name, 1 / per_rank if name == "interleaved_1f1b" else 1.0)
    held = float(pp)
    if name == "gpipe":
        held = micro_batches
    elif name == "interleaved_1f1b":
        held = ((per_rank - 1) * pp + 2 * (pp - 1) + 1) / per_rank
    return bubble, min(held, micro_batches)


class GatheredWeights(NamedTuple):
    """Parameters that one rank computes with, all blocks of its pipeline stage together."""

    dense: float
    experts: float


class RoughWaits(NamedTuple):
    """Seconds of collectives of one micro-batch: those of parameters hide behind compute as far as it lasts."""

    forward: float
    backward: float
    activations: float
    """Exposed."""


@functools.lru_cache(maxsize=16)
def _find_spans(mesh: Mesh) -> dict[Group, int]:
    groups = (Group.FSDP_GATHER, Group.EFSDP_GATHER, Group.DP_REPLICATE, Group.TP, Group.EP, Group.CP)
    return {group: mesh.group_span(group) for group in groups}


def _guess_waits(choice: RunChoice, facts: ModelFacts, machine: Machine, weights: GatheredWeights) -> RoughWaits:
    """Groups communicate beside each other, and compute waits for the slowest."""
    mesh, spans = choice.mesh, _find_spans(choice.mesh)
    tokens = choice.sequences * facts.seq_len / (mesh.tp * mesh.cp)
    forward = backward = 0.0
    shards = ((weights.dense, mesh.fsdp, Group.FSDP_GATHER), (weights.experts, mesh.efsdp, Group.EFSDP_GATHER))
    for size, ranks, group in shards:
        part = size * (ranks - 1) / ranks
        gather = machine.collective_seconds(_BFLOAT16 * part, spans[group], ranks=ranks, is_ring=True)
        scatter = machine.collective_seconds(_FLOAT32 * part, spans[group], ranks=ranks, is_ring=True)
        forward, backward = max(forward, gather), max(backward, scatter, gather if choice.reshard else 0.0)
    if mesh.dp_replicate > 1:
        local = weights.dense / mesh.fsdp + weights.experts / mesh.efsdp
        span, ranks = spans[Group.DP_REPLICATE], mesh.dp_replicate
        summing = machine.collective_seconds(2 * _FLOAT32 * local * (ranks - 1) / ranks, span, ranks=ranks)
        backward = max(backward, summing)
    exposed, blocks = 0.0, facts.blocks / mesh.pp
    if mesh.tp > 1:
        sent = 8 * _BFLOAT16 * tokens * (mesh.tp - 1) * facts.dim
        exposed += blocks * machine.collective_seconds(sent, spans[Group.TP], ranks=mesh.tp)
    if mesh.ep > 1:
        sent = 5 * _BFLOAT16 * tokens * facts.routed * facts.dim * (mesh.ep - 1) / mesh.ep
        seconds = machine.collective_seconds(sent, spans[Group.EP], ranks=mesh.ep, is_all_to_all=True)
        exposed += blocks * seconds * (_OVERLAPPED if choice.overlap else 1.0)
    if mesh.cp > 1:
        is_ulysses = mesh.cp_method == "ulysses"
        sent = 8 * _BFLOAT16 * tokens * facts.dim * ((mesh.cp - 1) / mesh.cp if is_ulysses else 0.5 * (mesh.cp - 1))
        seconds = machine.collective_seconds(sent, spans[Group.CP], ranks=mesh.cp, is_all_to_all=is_ulysses)
        exposed += blocks * seconds
    return RoughWaits(forward, backward, exposed)
