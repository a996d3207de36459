"""Turns what a step left on the device into one record of numbers, without making a GPU wait.

On CUDA a step's loss is read after the next step was launched, so the queue never runs dry; on CPU at once.

A record's `ms` is the step alone: from the end of the step before it to its own end, both on the device's clock.
Waiting for data counts. Validation, checkpoints and profiler traces between two steps do not: `start` is called after
them. `update_ms` is the part of it after the gradients: norm, clipping, optimizer.
"""

import math
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from monograph.compat.cuda_memory import highest_allocated
from monograph.log import get_log
from monograph.models.flops import FlopsPerToken
from monograph.train.clock import Clock, find_clock

log = get_log("measure")

_SHORTEST_SECONDS = 1e-9
"""A step that a clock could not tell from none is given this much, so that its speed is a number."""


@dataclass(frozen=True, kw_only=True)
class StepMeasurement:
    """One update's results as the device has them, and what the host knows about it already."""

    step: int
    loss: Tensor
    grad_norm: Tensor
    tokens: int
    replicas: int = 1
    """How many worlds have computed it."""
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Sums over the global batch by name: the experts' load, auxiliary losses."""
    known: Mapping[str, Any] = field(default_factory=dict)


class StepStamps(NamedTuple):
    """Moments of one step on the device's clock."""

    start: Any
    update: Any
    """When its gradients were done; None when nobody said."""
    end: Any


class StepMeter:
    """Speed, memory and expert load, step by step. `clock` is that of the device unless another is given.

    `peak_flops` is that of one device for the compute dtype; 0 leaves MFU out.
    """

    def __init__(
        self,
        *,
        device: torch.device,
        flops: FlopsPerToken,
        peak_flops: float = 0.0,
        world_size: int = 1,
        clock: Clock | None = None,
    ) -> None:
        self.device = device
        self.flops = flops
        self.world_size = world_size
        self.peak_flops = peak_flops
        self.clock = clock or find_clock(device)
        self._waiting: list[tuple[StepMeasurement, StepStamps]] = []
        self._last = self.clock.stamp()
        self._update: Any = None
        self._has_warned = False

    def start(self) -> None:
        """Begin timing here: what came before (set-up, validation, a checkpoint, a trace) is part of no step."""
        self._last = self.clock.stamp()

    def mark_update(self) -> None:
        """The gradients of the step were launched; what follows is its update."""
        self._update = self.clock.stamp()

    def add(self, measured: StepMeasurement) -> list[dict[str, Any]]:
        """Take the results of the step that was just launched; return the records that are ready, oldest first."""
        measured = send_to_host(measured)
        stamps = StepStamps(self._last, self._update, self.clock.stamp())
        self._waiting.append((measured, stamps))
        self._last, self._update = stamps.end, None
        return self._take(len(self._waiting) - self.clock.delay)

    def flush(self) -> list[dict[str, Any]]:
        """Everything not handed out yet."""
        return self._take(len(self._waiting))

    def _take(self, count: int) -> list[dict[str, Any]]:
        ready, self._waiting = self._waiting[: max(0, count)], self._waiting[max(0, count) :]
        return [self._record(*item) for item in ready]

    def _record(self, measured: StepMeasurement, stamps: StepStamps) -> dict[str, Any]:
        seconds = max(self.clock.seconds_between(stamps.start, stamps.end), _SHORTEST_SECONDS)
        loss, grad_norm = measured.loss.item(), measured.grad_norm.item()
        per_second = measured.tokens / seconds
        record: dict[str, Any] = {"step": measured.step, "loss": loss, "grad_norm": grad_norm, **measured.known}
        record |= {
            "ms": 1000 * seconds,
            "tokens_per_second": per_second,
            "peak_memory_gib": peak_memory_gib(self.device),
        }
        if stamps.update is not None:
            record["update_ms"] = 1000 * self.clock.seconds_between(stamps.update, stamps.end)
        record |= find_mfu(self.flops, per_second, self.peak_flops * self.world_size * measured.replicas)
        if "over_peak" in record and not self._has_warned:
            self._has_warned = True
            log.warning(
                "step %d would have an MFU of %s, more than the device can do, so none is reported: "
                "its peak (%.3g FLOP/s) is too low, see --machine and --metrics.peak_flops",
                *(measured.step, f"{100 * max(record['over_peak'].values()):,.0f} %", self.peak_flops),
            )
        return record | describe_metrics(measured.metrics)


def send_to_host(measured: StepMeasurement) -> StepMeasurement:
    """Start copying the results to host memory; they are there when the device has passed the next stamp.

    Reading a tensor of the device instead would wait for everything launched so far, the next step included.
    """
    loss, grad_norm = (value.to("cpu", non_blocking=True) for value in (measured.loss, measured.grad_norm))
    metrics = {name: value.to("cpu", non_blocking=True) for name, value in measured.metrics.items()}
    return replace(measured, loss=loss, grad_norm=grad_norm, metrics=metrics)


def find_mfu(flops: FlopsPerToken, tokens_per_second: float, peak_flops: float) -> dict[str, Any]:
    """Model FLOPs utilization by both formulas, as entries of a record; None where the device's peak is not known.

    More than the peak is impossible: such a value is no MFU but a wrong peak, and goes under `over_peak` instead.
    """
    if not peak_flops:
        return {"mfu": None, "mfu_causal": None}
    share = tokens_per_second / peak_flops
    found = {"mfu": flops.full_attention * share, "mfu_causal": flops.causal_attention * share}
    over = {name: value for name, value in found.items() if value > 1}
    entries: dict[str, Any] = {name: None if name in over else value for name, value in found.items()}
    return entries | {"mfu_formula": flops.FORMULA} | ({"over_peak": over} if over else {})


def describe_metrics(metrics: Mapping[str, Tensor]) -> dict[str, Any]:
    """Metrics as they are written: the load by how even it is, everything else value by value."""
    return {name: describe_load(value) if name == "expert_load" else value.tolist() for name, value in metrics.items()}


def describe_load(load: Tensor) -> dict[str, list[float]]:
    """Per MoE layer: the busiest expert over the mean (1 is even), and the entropy over its maximum (1 is even)."""
    counts = load.double()
    share = counts / counts.sum(1, keepdim=True).clamp(min=1)
    entropy = -(share * share.clamp(min=1e-30).log()).sum(1)
    n_experts = counts.shape[1]
    return {
        "max_over_mean": (share.amax(1) * n_experts).tolist(),
        "entropy": (entropy / math.log(n_experts)).tolist() if n_experts > 1 else [1.0] * len(share),
    }


def peak_memory_gib(device: torch.device) -> float:
    """CUDA: the allocator's peak. CPU: the largest this process has ever been."""
    if device.type == "cuda":
        return highest_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
