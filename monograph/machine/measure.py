"""Measures what a device and the links between ranks can do: what `monograph machine measure` writes down.

Everything is timed as a step would use it: matmuls and attention of several sizes, copies of what no cache holds,
kernels that do next to nothing, all_gathers of a small and a large value. Ranks measure at once, as they run.
"""

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from monograph.machine.choose import FALLBACK
from monograph.machine.device import Machine, Points
from monograph.machine.table import CPU, MACHINES, detect_machine

_WIDTHS = {"cpu": (64, 128, 256, 512, 1024), "cuda": (256, 512, 1024, 2048, 4096, 8192)}
"""Of square matmuls."""
_COPIED_BYTES = {"cpu": 1 << 27, "cuda": 1 << 31}
"""More than any cache holds."""
_SENT_BYTES = {"cpu": (1 << 10, 1 << 24), "cuda": (1 << 12, 1 << 28)}
_FLOAT8_CAPABILITY = (8, 9)
"""The first compute capability with float8 matmuls (Ada)."""
_HEAD_DIMS = (64, 128)
_REPEATS = 7
_LIMIT = timedelta(minutes=5)


def measure(device: torch.device, *, name: str = "", store: Path | None = None) -> Machine | None:
    """What this rank's device can do; None on ranks other than the first.

    Ranks that a launcher started meet by its address, others at the file `store`.
    """
    device_name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    known = detect_machine(device_name)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    links: dict[str, Any] = {}
    if ranks > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        where = f"file://{store}" if store else "env://"
        dist.init_process_group(backend, where, _LIMIT, ranks, int(os.environ["RANK"]))
        try:
            dist.barrier()
            links = _measure_links(device, ranks)
            rates = _measure_device(device, known)
            dist.barrier()
        finally:
            dist.destroy_process_group()
    else:
        rates = _measure_device(device, known)
    if int(os.environ.get("RANK", "0")):
        return None
    base = known or replace(MACHINES[FALLBACK], name=device_name)
    return replace(base, name=name or (device_name if device.type == "cuda" else "this CPU"), **(rates | links))


def _measure_device(device: torch.device, known: Machine | None) -> dict[str, Any]:
    """Rates of one device. Where a data sheet is known its peaks stay, and fractions of them are measured."""
    kind = device.type
    curves = {dtype: _measure_matmuls(device, dtype) for dtype in (torch.float32, torch.bfloat16)}
    best = {dtype: max(rate for _, rate in curve) for dtype, curve in curves.items()}
    has_sheet = known is not None and known is not CPU
    main = torch.bfloat16 if kind == "cuda" else torch.float32
    peak = known.peak_flops("bfloat16") if has_sheet and known else best[main]
    found: dict[str, Any] = {
        "device": kind,
        "matmul_fraction": min(1.0, best[main] / peak),
        "matmul_points": tuple((gflop, min(1.0, rate / peak)) for gflop, rate in curves[main]),
        "attention_points": _measure_attention(device, main, peak),
        "grouped_matmul_fraction": 0.0,
        "float8_matmul_fraction": known.float8_matmul_fraction if has_sheet and known else 0.0,
        "kernel_latency_us": 1e6 * _time(_make_tiny(device), device),
        "host_gb_per_second": _measure_host(device) / 1e9,
    }
    if not has_sheet:
        tflops = {dtype: rate / 1e12 for dtype, rate in best.items()}
        found |= {"float32_tflops": tflops[torch.float32], "bfloat16_tflops": tflops[torch.bfloat16]}
        found |= {"float8_tflops": tflops[torch.bfloat16] * _find_float8_gain(device)}
        found |= {"memory_gb": _count_memory(device) / 1e9}
    memory = _measure_memory(device) / 1e9
    if has_sheet and known:
        return found | {"memory_fraction": min(1.0, memory / known.memory_gb_per_second)}
    return found | {"memory_gb_per_second": memory, "memory_fraction": 1.0}


def _time(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds of one call: the median of several runs, each of as many calls as take some milliseconds."""
    _run(work, device, 1)
    count = 1
    while _run(work, device, count) < 5e-3 and count < 1 << 12:
        count *= 2
    return statistics.median(_run(work, device, count) for _ in range(_REPEATS)) / count


def _run(work: Callable[[], Any], device: torch.device, count: int) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(count):
        work()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _make_tiny(device: torch.device) -> Callable[[], Any]:
    value = torch.zeros(8, device=device)
    return lambda: value.add_(1.0)


def _measure_matmuls(device: torch.device, dtype: torch.dtype) -> list[tuple[float, float]]:
    """(GFLOP, FLOP/s) of square matmuls, small ones first; a CPU without instructions for a dtype is asked little."""
    found: list[tuple[float, float]] = []
    for width in _WIDTHS[device.type]:
        left, right = (torch.randn(width, width, device=device).to(dtype) for _ in range(2))
        seconds = _time(lambda left=left, right=right: left @ right, device)  # type: ignore[misc]
        found.append((2 * width**3 / 1e9, 2 * width**3 / seconds))
        if seconds > 0.1:
            break
    return found


def _measure_attention(device: torch.device, dtype: torch.dtype, peak: float) -> Points:
    """(channels of a head, fraction of the peak) of causal attention, forward and backward."""
    tokens, heads = (4096, 32) if device.type == "cuda" else (512, 4)
    found = []
    for channels in _HEAD_DIMS:
        shape = (1, heads, tokens, channels)
        q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))

        def step(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v) -> None:
            F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

        flops = 7 * 2 * heads * tokens * tokens * channels / 2  # two matmuls forward, five backward; half is masked
        found.append((float(channels), min(1.0, flops / _time(step, device) / peak)))
    return tuple(found)


def _measure_memory(device: torch.device) -> float:
    """Bytes per second that an elementwise kernel reads and writes."""
    value = torch.ones(_COPIED_BYTES[device.type] // 4, device=device)
    out = torch.empty_like(value)
    return 2 * value.numel() * 4 / _time(lambda: torch.add(value, 1.0, out=out), device)


def _measure_host(device: torch.device) -> float:
    """Bytes per second from host to device; on a CPU, of a copy."""
    is_cuda = device.type == "cuda"
    value = torch.ones(_COPIED_BYTES["cpu"] // 4, pin_memory=is_cuda)
    out = torch.empty_like(value, device=device)
    return value.numel() * 4 / _time(lambda: out.copy_(value, non_blocking=True), device)


def _find_float8_gain(device: torch.device) -> int:
    """How much faster matmuls in float8 are said to be than in bfloat16; 1 where there are none."""
    return 2 if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _FLOAT8_CAPABILITY else 1


def _count_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _measure_links(device: torch.device, ranks: int) -> dict[str, Any]:
    """Latency and rate of all_gathers within a node, and between nodes where there are several.

    On one node nothing is known of the network. A node may have more GPUs than there are ranks.
    """
    in_node = count_in_node(ranks)
    rank = int(os.environ["RANK"])
    nodes = [list(range(first, min(first + in_node, ranks))) for first in range(0, ranks, in_node)]
    groups = [dist.new_group(members) for members in nodes]
    found: dict[str, Any] = {"devices_per_node": max(in_node, _count_devices(device))}
    if in_node > 1:
        latency, rate = _time_all_gather(device, groups[rank // in_node], in_node)
        found |= {"link_gb_per_second": rate / 1e9, "collective_latency_us": latency * 1e6}
    if len(nodes) > 1:
        peers = [list(range(first, ranks, in_node)) for first in range(in_node)]
        across = [dist.new_group(members) for members in peers]
        latency, rate = _time_all_gather(device, across[rank % in_node], len(nodes))
        found |= {"network_gb_per_second": rate / 1e9}
        found.setdefault("collective_latency_us", latency * 1e6)
    return found


def count_in_node(ranks: int) -> int:
    """How many of the ranks are on this node."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", ranks))


def _count_devices(device: torch.device) -> int:
    return torch.cuda.device_count() if device.type == "cuda" else 1


def _time_all_gather(device: torch.device, group: Any, ranks: int) -> tuple[float, float]:
    """Seconds that an all_gather of next to nothing takes, and bytes per second that one rank sends in a large one."""
    times = []
    for size in _SENT_BYTES[device.type]:
        shard = torch.ones(size // ranks // 4, device=device)
        parts = list(torch.empty(shard.numel() * ranks, device=device).chunk(ranks))
        runs = []
        for _ in range(_REPEATS):
            dist.barrier(group=group)
            start = time.perf_counter()
            dist.all_gather(parts, shard, group=group)
            _wait(device)
            runs.append(time.perf_counter() - start)
        times.append(statistics.median(runs))
    small, large = _SENT_BYTES[device.type]
    return times[0], (large - small) * (ranks - 1) / ranks / max(times[1] - times[0], 1e-9)
