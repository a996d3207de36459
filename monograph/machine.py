"""What devices and the links between them can do: one table, detected by device name or chosen with `--machine`.

Cost estimates, passes that plan with them, `inspect` and MFU all read this file. Loads without torch.
"""

import json
import math
import os
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from monograph.errors import ConfigError, did_you_mean, find_nearest

AUTO = "auto"
"""The value of `--machine` that stands for the device a run is on."""
FALLBACK = "H100"
"""What estimates are made for where the device is not in the table."""
_GIGA, _TERA, _MICROSECOND = 1e9, 1e12, 1e-6


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

    @property
    def memory_bytes(self) -> int:
        """Of the device."""
        return int(self.memory_gb * _GIGA)

    def peak_flops(self, dtype: str) -> float:
        """Peak FLOP/s of matmuls of a dtype, by torch's name for it; what is not listed runs as float32."""
        if dtype.startswith("float8"):
            return self.float8_tflops * _TERA
        return (self.bfloat16_tflops if dtype in ("bfloat16", "float16") else self.float32_tflops) * _TERA

    def matmul_seconds(self, flops: float, dtype: str) -> float:
        """How long large matmuls of a dtype take."""
        return flops / (self.peak_flops(dtype) * self.matmul_fraction)

    def memory_seconds(self, touched_bytes: float) -> float:
        """How long reading and writing this much of the device's memory takes."""
        return touched_bytes / (self.memory_gb_per_second * _GIGA * self.memory_fraction)

    def collective_seconds(self, sent_bytes: float, span: int) -> float:
        """How long a collective takes in which one rank sends this much; nothing when it sends nothing.

        `span` is the number of ranks from a group's first to its last: a group that spans more than a node is as slow
        as the network.
        """
        if not sent_bytes:
            return 0.0
        rate = self.link_gb_per_second if span <= self.devices_per_node else self.network_gb_per_second
        return self.collective_latency_us * _MICROSECOND + sent_bytes / (rate * _GIGA)

    def host_copy_seconds(self, copied_bytes: float) -> float:
        """How long a copy between host and device takes."""
        return copied_bytes / (self.host_gb_per_second * _GIGA)

    def describe(self) -> str:
        """Everything that estimates use, in one line."""
        rates = (self.float32_tflops, self.bfloat16_tflops, self.float8_tflops)
        matmuls = " / ".join(f"{rate * self.matmul_fraction:.4g}" for rate in rates)
        return (
            f"{self.name}: {matmuls} TFLOP/s (float32 / bfloat16 / float8), {self.memory_gb:.4g} GB at "
            f"{self.memory_gb_per_second * self.memory_fraction:.4g} GB/s, links {self.link_gb_per_second:.4g} GB/s "
            f"among {self.devices_per_node}, network {self.network_gb_per_second:.4g} GB/s, collectives start in "
            f"{self.collective_latency_us:.4g} us, host {self.host_gb_per_second:.4g} GB/s"
        )


_COLUMNS = (
    *("name", "float32_tflops", "bfloat16_tflops", "float8_tflops", "memory_gb", "memory_gb_per_second"),
    *("link_gb_per_second", "network_gb_per_second", "host_gb_per_second", "devices_per_node"),
)
# The vendors' data sheets: dense peaks (half of what they print "with sparsity"), float32 of the ordinary cores, links
# per direction (half of the printed total). Not on data sheets: the network, which is the usual one of 8-GPU servers
# with one adapter a device (400 Gb/s; A100 and L40S 200 Gb/s). A100 PCIe cards have the peaks of SXM, not its links.
# fmt: off
_ROWS = (
    # name        fp32   bf16   fp8    GB    GB/s   link  net host devices
    ("A100",      19.5,  312,   312,   80,   2039,  300,  25, 32,  8),   # SXM: NVLink 3, PCIe 4; no float8
    ("A100-40GB", 19.5,  312,   312,   40,   1555,  300,  25, 32,  8),   # SXM
    ("H100",      67,    989,   1979,  80,   3350,  450,  50, 64,  8),   # SXM: NVLink 4, PCIe 5
    ("H100-NVL",  60,    835.5, 1671,  94,   3900,  64,   50, 64,  8),   # bridged in pairs, the rest over PCIe 5
    ("H100-PCIe", 51,    756.5, 1513,  80,   2000,  64,   50, 64,  8),   # the same
    ("H200",      67,    989,   1979,  141,  4800,  450,  50, 64,  8),   # SXM
    ("H200-NVL",  60,    835.5, 1671,  141,  4800,  450,  50, 64,  4),   # bridged in fours
    ("B200",      75,    2250,  4500,  180,  7700,  900,  50, 64,  8),   # HGX: NVLink 5
    ("GB200",     80,    2500,  5000,  186,  8000,  900,  50, 225, 72),  # NVL72; two GPUs share one CPU's NVLink-C2C
    ("MI300X",    163.4, 1307.4, 2614.9, 192, 5300, 448,  50, 64,  8),   # 7 Infinity Fabric links of 64 GB/s
    ("L40S",      91.6,  362,   733,   48,   864,   32,   25, 32,  8),   # no NVLink: PCIe 4
)
# fmt: on
_MEASURED = {"H200": {"matmul_fraction": 0.799, "memory_fraction": 0.896}}
"""Measured on one H200 (790 bfloat16 TFLOP/s, 4.3 TB/s); the fractions of all others are taken to be like these."""

CPU = Machine(
    name="CPU",
    float32_tflops=1.0,
    bfloat16_tflops=1.0,
    float8_tflops=1.0,
    matmul_fraction=0.8,
    memory_gb=64,
    memory_gb_per_second=50,
    memory_fraction=0.8,
    link_gb_per_second=5,
    network_gb_per_second=1.25,
    host_gb_per_second=10,
    collective_latency_us=50,
    devices_per_node=8,
)
"""The order of magnitude of one rank on a server's CPU with gloo. No data sheet says this, so it is not for MFU."""


def _build_machine(row: tuple[Any, ...]) -> Machine:
    values = dict(zip(_COLUMNS, row, strict=True))
    assumed = {"matmul_fraction": 0.8, "memory_fraction": 0.9, "collective_latency_us": 10}
    return Machine(**{**values, **assumed, **_MEASURED.get(values["name"], {})})


MACHINES: dict[str, Machine] = {row[0]: _build_machine(row) for row in _ROWS} | {CPU.name: CPU}
"""Every known machine by name."""

_PATTERNS = (
    (r"\bA100\b.*\b40GB\b", "A100-40GB"),
    (r"\bA100\b.*\b80GB\b", "A100"),
    (r"\bH100 NVL\b", "H100-NVL"),
    (r"\bH100 PCIe\b|\bH100\b.*\bHBM2e\b", "H100-PCIe"),
    (r"\bH200 NVL\b", "H200-NVL"),
    (r"\bGB200\b", "GB200"),
    (r"\bB200\b", "B200"),
    (r"\bH200\b", "H200"),
    (r"\bH100\b", "H100"),
    (r"\bL40S\b", "L40S"),
    (r"\bMI300X\b", "MI300X"),
)
"""What drivers call a device -> its entry; the first match counts."""


def detect_machine(device_name: str) -> Machine | None:
    """The machine of a device, by what `torch.cuda.get_device_name` or "cpu" says; None when it is not in the table.

    Whole words are compared (a GH200 is no H200), and a MIG slice is not its GPU.
    """
    if device_name.lower() == "cpu":
        return CPU
    if re.search(r"\bMIG\b", device_name):
        return None
    found = (name for pattern, name in _PATTERNS if re.search(pattern, device_name, re.IGNORECASE))
    name = next(found, None)
    return MACHINES[name] if name else None


def find_machine(name_or_path: str) -> Machine:
    """The machine of a name, in upper or lower case, or of a JSON file with the fields of `Machine`."""
    for name, machine in MACHINES.items():
        if name.lower() == name_or_path.lower():
            return machine
    if name_or_path.endswith(".json") or os.sep in name_or_path:
        return read_machine(Path(name_or_path))
    nearest = find_nearest(name_or_path.upper(), MACHINES)
    raise ConfigError(
        f"machine is {name_or_path!r}",
        why=f"there is no machine of that name; there are {', '.join(MACHINES)}",
        do=f"did you mean {nearest}?" if nearest else f"write one of them, {AUTO}, or the path of a .json file",
    )


def read_machine(path: Path) -> Machine:
    """The machine that a JSON file describes: an object with exactly the fields of `Machine`."""
    try:
        content = json.loads(path.read_bytes())  # with NaN, which is refused below, by its field
    except OSError as error:
        raise ConfigError(f"machine is {path}", why=f"it cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"machine is {path}", why=f"it is not JSON: {error}") from None
    names = [field.name for field in fields(Machine)]
    if not isinstance(content, dict):
        raise ConfigError(f"machine is {path}", why="it must hold one object", do=f"fields: {', '.join(names)}")
    for name in content:
        if name not in names:
            raise ConfigError(f"{path} has the field {name!r}", why="no machine has it", do=did_you_mean(name, names))
    missing = [name for name in names if name not in content]
    if missing:
        raise ConfigError(f"{path} lacks {', '.join(missing)}", why=f"a machine has {', '.join(names)}")
    for name in names:
        _check_field(path, name, content[name])
    return Machine(**content)


def _check_field(path: Path, name: str, value: Any) -> None:
    if name == "name":
        is_right, wanted = isinstance(value, str) and value != "" and value.isprintable(), "a text"
    elif name == "devices_per_node":
        is_right, wanted = type(value) is int and value >= 1, "a whole number >= 1"
    else:
        is_number = type(value) in (int, float) and abs(value) < math.inf
        low_is_allowed = name == "collective_latency_us"
        is_right = is_number and (value > 0 or (low_is_allowed and value == 0))
        wanted = f"a finite number {'>=' if low_is_allowed else '>'} 0"
        if name.endswith("_fraction"):
            is_right, wanted = is_right and value <= 1, "a number > 0 and <= 1"
    if not is_right:
        raise ConfigError(f"{path}: {name} is {value!r:.80}", why=f"it must be {wanted}")


def write_machine(machine: Machine, path: Path) -> None:
    """Write the JSON file that `read_machine` reads."""
    path.write_text(json.dumps(asdict(machine), indent=2, allow_nan=False) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class MachineChoice:
    """The machine that a run plans for, and how far it is the one it runs on."""

    machine: Machine
    device_name: str
    is_known: bool
    """Whether the machine was named, or the device is in the table."""

    @property
    def note(self) -> str:
        """Why the machine is not that of the device; empty when it is, or was named."""
        return "" if self.is_known else f"{self.device_name!r} is not in the table; --machine NAME or FILE.json"

    def peak_flops(self, dtype: str) -> float:
        """The peak that MFU is a part of; 0 where it is unknown, and MFU is left out."""
        return self.machine.peak_flops(dtype) if self.is_known and self.machine != CPU else 0.0


def choose_machine(wanted: str, device_name: str) -> MachineChoice:
    """The machine of `--machine`, where auto is that of the device, or FALLBACK for a device that is not known."""
    if wanted != AUTO:
        return MachineChoice(find_machine(wanted), device_name, is_known=True)
    found = detect_machine(device_name)
    return MachineChoice(found or MACHINES[FALLBACK], device_name, is_known=found is not None)
