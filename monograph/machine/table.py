"""The machines that are known by name: data sheets, with what was measured where it was. Loads without torch."""

import re
from typing import Any

from monograph.machine.device import Machine

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
_MEASURED = {"H200": {"memory_fraction": 0.896}}
"""Of one H200: 4.3 TB/s; the fractions of all others are taken to be like these."""
_REACHED = {
    "matmul_fraction": 0.74,
    "grouped_matmul_fraction": 0.6,
    "float8_matmul_fraction": 0.64,
    "attention_points": ((64, 0.33), (160, 0.41)),
    "kernel_latency_us": 3.0,
    "memory_fraction": 0.9,
    "collective_latency_us": 10,
    "link_step_us": 3.4,
    "network_step_us": 9.6,
}
"""In a training step of one H200 at its power limit (benchmarks/results/2026-11-15-bench-h200.md): matmuls 720 to
750 TFLOP/s, 790 alone; grouped matmuls 590; attention 330 with 64 channels a head and 410 with 192 and 128. Matmuls of
float8 with scales of rows 1,260 to 1,290 of 1,979, alone. The steps of rings are those of NCCL's own model."""

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
    device="cpu",
)
"""The order of magnitude of one rank on a server's CPU with gloo. No data sheet says this, so it is not for MFU."""


def _build_machine(row: tuple[Any, ...]) -> Machine:
    values = dict(zip(_COLUMNS, row, strict=True))
    return Machine(**{**values, **_REACHED, **_MEASURED.get(values["name"], {})})


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
