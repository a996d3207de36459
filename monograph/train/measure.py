"""Turns what a step left on the device into one record of numbers, without making a GPU wait.

On CUDA a step's loss is read after the next step was launched, so the queue never runs dry; on CPU at once.
"""

import math
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from monograph.train.flops import FlopsPerToken

_PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "B200": 2250e12, "GB200": 2500e12, "L40S": 362e12}
"""Dense bf16 peak rates by the vendor's data sheets; the longest matching name wins."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One update's results as they stand on the device, and what the host knows about it already."""

    step: int
    loss: Tensor
    grad_norm: Tensor
    tokens: int
    metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """Sums over the global batch by name: the experts' load, auxiliary losses."""
    known: Mapping[str, Any] = field(default_factory=dict)


class Meter:
    """Speed, memory and expert load, step by step."""

    def __init__(
        self, *, device: torch.device, flops: FlopsPerToken, peak_flops: float = 0.0, world_size: int = 1
    ) -> None:
        self.device = device
        self.flops = flops
        self.world_size = world_size
        self.peak_flops = peak_flops or find_peak_flops(device)
        self._waiting: list[Measured] = []
        self._last = time.perf_counter()

    def start(self) -> None:
        """Begin timing: set-up time does not count into the first step's."""
        self._last = time.perf_counter()

    def add(self, measured: Measured) -> list[dict[str, Any]]:
        """Take one step's results; return the records that are ready, oldest first."""
        self._waiting.append(measured)
        delay = 1 if self.device.type == "cuda" else 0
        ready, self._waiting = self._waiting[: len(self._waiting) - delay], self._waiting[len(self._waiting) - delay :]
        return [self._record(item) for item in ready]

    def flush(self) -> list[dict[str, Any]]:
        """Everything not handed out yet."""
        ready, self._waiting = self._waiting, []
        return [self._record(item) for item in ready]

    def _record(self, measured: Measured) -> dict[str, Any]:
        loss, grad_norm = measured.loss.item(), measured.grad_norm.item()
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        per_second = measured.tokens / seconds
        record: dict[str, Any] = {"step": measured.step, "loss": loss, "grad_norm": grad_norm, **measured.known}
        record |= {
            "ms": 1000 * seconds,
            "tokens_per_second": per_second,
            "peak_memory_gib": peak_memory_gib(self.device),
        }
        if self.peak_flops:
            share = per_second / (self.peak_flops * self.world_size)
            record |= {"mfu": self.flops.full_attention * share, "mfu_causal": self.flops.causal_attention * share}
            record["mfu_formula"] = self.flops.FORMULA
        else:
            record |= {"mfu": None, "mfu_causal": None}
        return record | describe_metrics(measured.metrics)


class Speed:
    """The run as a whole: its first and last record, and the mean speed. It keeps no others, however long the run."""

    def __init__(self) -> None:
        self.first: Mapping[str, Any] = {}
        self.last: Mapping[str, Any] = {}
        self._steps = 0
        self._seconds = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        """Take one step's record."""
        self.first = self.first or record
        self.last = record
        self._steps += 1
        self._seconds += record["ms"] / 1000

    def tokens_per_second(self, tokens_per_step: int) -> float:
        """The mean without the first step, which warms things up; with it when there is no other."""
        if self._steps > 1:
            return tokens_per_step * (self._steps - 1) / (self._seconds - self.first["ms"] / 1000)
        return self.first.get("tokens_per_second", 0.0)


def describe_metrics(metrics: Mapping[str, Tensor]) -> dict[str, Any]:
    """Metrics as they are written: the load by how even it is, everything else value by value."""
    return {name: describe_load(value) if name == "expert_load" else value.tolist() for name, value in metrics.items()}


def describe_load(load: Tensor) -> dict[str, list[float]]:
    """Per MoE layer: the busiest expert over the mean (1 is even), and the entropy over its maximum (1 is even)."""
    counts = load.double().cpu()
    share = counts / counts.sum(1, keepdim=True).clamp(min=1)
    entropy = -(share * share.clamp(min=1e-30).log()).sum(1)
    n_experts = counts.shape[1]
    return {
        "max_over_mean": (share.amax(1) * n_experts).tolist(),
        "entropy": (entropy / math.log(n_experts)).tolist() if n_experts > 1 else [1.0] * len(share),
    }


def find_peak_flops(device: torch.device) -> float:
    """The device's dense bf16 peak, or 0 when it is not in the table: no MFU is better than a wrong one."""
    if device.type != "cuda":
        return 0.0
    name = torch.cuda.get_device_name(device)
    matches = [known for known in _PEAK_FLOPS if known in name]
    return _PEAK_FLOPS[max(matches, key=len)] if matches else 0.0


def peak_memory_gib(device: torch.device) -> float:
    """CUDA: the allocator's peak. CPU: the largest this process has ever been."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
