"""A way to run a recipe with what its graph says: how fast it is, what it needs, what limits it."""

import math
from dataclasses import dataclass

from monograph.machine.device import Machine
from monograph.models.flops import FlopsPerToken
from monograph.plan.choice import PipelineChoice, RunChoice, configure
from monograph.plan.measure import StepEstimate
from monograph.plan.rough import count_communicators, count_reserved
from monograph.train.config import TrainerConfig

_GIB = 1 << 30
_WORTH_SAYING = 0.05
"""Of the time: what waits less does not limit a run."""


@dataclass(frozen=True)
class PlannedRun:
    """A choice with what its graph says."""

    base: TrainerConfig
    """The recipe as it was given."""
    choice: RunChoice
    pipeline: PipelineChoice
    step: StepEstimate
    machine: Machine
    flops: FlopsPerToken
    """Of a token."""

    @property
    def config(self) -> TrainerConfig:
        """What the command of this run asks for; there is room for all that it offloads."""
        gib = math.ceil(101 * self.step.offloaded_bytes / _GIB) / 100
        return configure(self.base, self.choice, self.pipeline, offload_gib=max(gib, 0.01))

    @property
    def tokens(self) -> int:
        """Of one update."""
        choice = self.choice
        sequences = choice.sequences * choice.micro_batches * choice.mesh.data_parts
        return sequences * self.base.training.seq_len

    @property
    def peak_bytes(self) -> int:
        """What the allocator hands out at the peak, on one device."""
        return self.step.memory.peak

    @property
    def needed_bytes(self) -> float:
        """With fragments, context and communicators."""
        per_node = self.machine.devices_per_node
        communicators = count_communicators(self.choice.mesh, per_node=per_node, has_overlap=self.choice.overlap)
        return self.peak_bytes + count_reserved(self.peak_bytes, communicators)

    @property
    def fits(self) -> bool:
        """Whether the device has that much."""
        return self.needed_bytes <= self.machine.memory_bytes

    @property
    def update_seconds(self) -> float:
        """One update."""
        running = self.choice.micro_batches * self.step.step_seconds
        return running + self.step.bubble_seconds + self.step.optimizer_seconds

    @property
    def bubble(self) -> float:
        """The part of an update in which pipeline ranks wait for others, on average, as `inspect` and runs count it."""
        return self.step.idle_seconds / self.update_seconds

    @property
    def tokens_per_second(self) -> float:
        """Over all devices."""
        return self.tokens / self.update_seconds

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization, attention counted in full, of the peak of the run's compute dtype."""
        peak = self.machine.peak_flops(self.base.training.compute_dtype)
        return self.flops.full_attention * self.tokens_per_second / (peak * self.choice.mesh.world_size)

    @property
    def limit(self) -> str:
        """What takes most of the time beside compute, or would allow more if it were not there."""
        count = self.choice.micro_batches
        waits = {group: count * seconds for group, seconds in self.step.exposed_seconds.items()}
        waits |= {"pipeline bubble": self.step.bubble_seconds, "optimizer": self.step.optimizer_seconds}
        name = max(waits, key=lambda each: waits[each])
        share = waits[name] / self.update_seconds
        return f"{name} {100 * share:.0f} %" if share >= _WORTH_SAYING else "compute"
