"""What one kind of device, its memory and its links can do, and how long work takes on it. Loads without torch.

Cost estimates, passes that plan with them, `inspect`, `plan` and MFU all read this.
"""

import bisect
import math
from dataclasses import dataclass, replace
from typing import Literal

_GIGA, _TERA, _MICROSECOND = 1e9, 1e12, 1e-6
Points = tuple[tuple[float, float], ...]
"""A measured curve: (size, value), sizes ascending."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """One device, its memory and its links, in the units of data sheets: 1 GB is 10^9 bytes.

    Peaks and bandwidths are nominal; the two fractions say what large matmuls and elementwise kernels reach of them.
    """

    name: str
    float32_tflops: float
    """Peak of dense float32 matmuls as torch runs them by default: without TF32."""
    bfloat16_tflops: float
    """Peak of dense bfloat16 (and float16) matmuls, without sparsity."""
    float8_tflops: float
    """Peak of dense float8 matmuls; the peak of bfloat16 where the device has none for float8."""
    matmul_fraction: float
    """What large matmuls reach of the peak."""
    memory_gb: float
    memory_gb_per_second: float
    """Bandwidth of the device's memory."""
    memory_fraction: float
    """What elementwise kernels reach of that bandwidth."""
    link_gb_per_second: float
    """What one device sends to others of its node."""
    network_gb_per_second: float
    """What one device sends to other nodes."""
    host_gb_per_second: float
    """Copies between host and device, each way."""
    collective_latency_us: float
    """How long a collective takes before its first byte moves."""
    devices_per_node: int
    """Devices that the links of a node connect; for GB200, those of an NVL72 rack."""
    device: Literal["cuda", "cpu"] = "cuda"
    """What torch calls such a device: which kernels a step for it has."""
    link_step_us: float = 0.0
    """What each further rank of a node adds to an all_gather or reduce_scatter, which go round in rings."""
    network_step_us: float = 0.0
    """What each further node adds to them."""
    kernel_latency_us: float = 0.0
    """What every kernel takes besides its work: starting, and draining the device."""
    grouped_matmul_fraction: float = 0.0
    """What grouped matmuls of experts reach of the peak; 0 takes matmul_fraction."""
    float8_matmul_fraction: float = 0.0
    """What float8 matmuls reach of their peak at most; 0 takes matmul_fraction."""
    matmul_points: Points = ()
    """(GFLOP, fraction of the peak) of measured matmuls, small ones first; between them the logarithm of the size is
    interpolated. Empty takes matmul_fraction for every size."""
    attention_points: Points = ()
    """(channels of a head, fraction of the peak) of measured attention, forward and backward, by the scores that a
    causal mask leaves. Empty takes matmul_fraction."""

    @property
    def has_float8(self) -> bool:
        """Whether its matmuls in float8 are any faster; a GPU without any has the peak of bfloat16."""
        return self.float8_tflops > self.bfloat16_tflops

    @property
    def memory_bytes(self) -> int:
        """Of the device."""
        return int(self.memory_gb * _GIGA)

    def for_ranks(self, ranks: int) -> "Machine":
        """The machine as so many ranks use it: on as few nodes as have equally many of them each."""
        if ranks <= self.devices_per_node:
            return self
        used = max(count for count in range(1, self.devices_per_node + 1) if ranks % count == 0)
        return replace(self, devices_per_node=used)

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s of matmuls of a dtype, by torch's name for it; what is not listed runs as float32."""
        if dtype.startswith("float8"):
            return self.float8_tflops * _TERA
        return (self.bfloat16_tflops if dtype in ("bfloat16", "float16") else self.float32_tflops) * _TERA

    def matmul_seconds(self, flops: float, dtype: str, *, is_grouped: bool = False) -> float:
        """How long one matmul of a dtype takes, or one grouped matmul of experts."""
        fraction = _interpolate(self.matmul_points, flops / _GIGA) if self.matmul_points else self.matmul_fraction
        if is_grouped and self.grouped_matmul_fraction:
            fraction = min(fraction, self.grouped_matmul_fraction)
        if dtype.startswith("float8") and self.float8_matmul_fraction:
            fraction = min(fraction, self.float8_matmul_fraction)
        return flops / (self.peak_flops(dtype) * fraction)

    def attention_seconds(self, flops: float, dtype: str, head_dim: float) -> float:
        """How long attention takes that computes with this many of its scores' operations, masked ones left out."""
        points = self.attention_points
        return flops / (self.peak_flops(dtype) * (_interpolate(points, head_dim) if points else self.matmul_fraction))

    @property
    def kernel_seconds(self) -> float:
        """What every kernel takes besides its work."""
        return self.kernel_latency_us * _MICROSECOND

    def memory_seconds(self, touched_bytes: float) -> float:
        """How long reading and writing this much of the device's memory takes."""
        return touched_bytes / (self.memory_gb_per_second * _GIGA * self.memory_fraction)

    def collective_seconds(
        self, sent_bytes: float, span: int, *, ranks: int = 2, is_all_to_all: bool = False, is_ring: bool = False
    ) -> float:
        """How long a collective takes in which one rank sends this much; nothing when it sends nothing.

        `span` is the number of ranks from a group's first to its last. A group that spans several nodes goes over the
        network. Rings of a group with several ranks in each node cross it once a ring, each over an adapter of its own;
        an all_to_all sends to each rank directly, over the sender's own adapter. A ring (of an all_gather or a
        reduce_scatter) has a step for every rank; sums over all ranks can take trees.
        """
        if not sent_bytes:
            return 0.0
        nodes = -(-span // self.devices_per_node)
        latency = self.collective_latency_us * _MICROSECOND * (1 + math.log2(nodes))
        link, network = self.link_gb_per_second * _GIGA, self.network_gb_per_second * _GIGA
        stride = max(1, (span - 1) // max(1, ranks - 1))
        in_node = max(1, min(ranks, self.devices_per_node // stride))
        if is_ring and ranks > 2:
            used = -(-ranks // in_node)
            latency += ((ranks - used) * self.link_step_us + (used - 1) * self.network_step_us) * _MICROSECOND
        if nodes == 1:
            return latency + sent_bytes / link
        if is_all_to_all:
            inside = (in_node - 1) / max(1, ranks - 1)
            return latency + max(sent_bytes * inside / link, sent_bytes * (1 - inside) / network)
        return latency + sent_bytes / min(link, network * in_node)

    def host_copy_seconds(self, copied_bytes: float) -> float:
        """How long a copy between host and device takes."""
        return copied_bytes / (self.host_gb_per_second * _GIGA)

    def achieved_tflops(self) -> dict[str, float]:
        """TFLOP/s of large matmuls by dtype; float8 only where the device has it."""
        rates = {
            "float32": self.float32_tflops * self.matmul_fraction,
            "bfloat16": self.bfloat16_tflops * self.matmul_fraction,
        }
        if self.has_float8:
            fraction = min(self.matmul_fraction, self.float8_matmul_fraction or 1.0)
            rates["float8"] = self.float8_tflops * fraction
        return rates

    def describe_target(self, captured_on: str) -> str:
        """Kind of device that a program planned for this machine runs on, as a sentence."""
        target = "GPU" if self.device == "cuda" else "CPU"
        return f"{target} program{'' if captured_on == self.device else ', traced without one'}."

    def describe_estimates(self, reason: str) -> str:
        """Whose times are estimated, and by which rates, as a sentence; `reason` is why this machine was chosen."""
        name = f"{self.name} ({reason})" if reason else self.name
        return f"Times are estimates for {name}: {self.describe().partition(': ')[2]}."

    def describe(self) -> str:
        """Everything that estimates use, in one line."""
        rates = self.achieved_tflops()
        matmuls = f"{' / '.join(f'{rate:.4g}' for rate in rates.values())} TFLOP/s ({' / '.join(rates)})"
        return (
            f"{self.name}: {matmuls}, {self.memory_gb:.4g} GB at "
            f"{self.memory_gb_per_second * self.memory_fraction:.4g} GB/s, links {self.link_gb_per_second:.4g} GB/s "
            f"among {self.devices_per_node}, network {self.network_gb_per_second:.4g} GB/s, collectives start in "
            f"{self.collective_latency_us:.4g} us, host {self.host_gb_per_second:.4g} GB/s"
        )


def _interpolate(points: Points, size: float) -> float:
    """The value at a size: between two points by the logarithm of the size, beyond them that of the nearest."""
    index = bisect.bisect_left([each for each, _ in points], size)
    if index == 0 or index == len(points):
        return points[min(index, len(points) - 1)][1]
    (low, first), (high, second) = points[index - 1 : index + 1]
    share = (math.log(size) - math.log(low)) / (math.log(high) - math.log(low))
    return first + share * (second - first)
