"""Attention by kind on one device: time of forward and backward, memory, and the distance from naive fp32 attention.

    python benchmarks/attention_kinds.py --out attention.json
    python benchmarks/attention_kinds.py --tiny            # every row, small, also on a CPU

Rows of one shape are judged by ratios within the run: packed documents and windows against plain causal attention, and
deterministic backward kernels against the others. Exit code 1 when an output or a gradient is further from the naive
form than bf16 explains.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from monograph.kernels.attention import attention
from monograph.kernels.attention_reference import attend_densely
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.segments import build_segments
from monograph.models.sequence_part import WHOLE

TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-5}
"""Largest distance from the naive form, as a part of its largest value."""


@dataclass(frozen=True)
class Shape:
    """Sizes of q, k and v."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    channels: int
    value_channels: int

    @property
    def name(self) -> str:
        """For the table."""
        return f"{self.batch} x {self.length}, {self.heads}/{self.kv_heads} heads of {self.channels}"


@dataclass(frozen=True)
class Row:
    """One measurement."""

    name: str
    kind: AttentionKind = CAUSAL
    document: int = 0
    """Tokens of a document; 0 for one text."""
    is_deterministic: bool = False


SHAPES = (
    Shape(4, 4096, 32, 8, 64, 64),
    Shape(1, 32768, 32, 8, 128, 128),
    Shape(4, 4096, 16, 16, 192, 128),
)
TINY = (Shape(2, 128, 4, 2, 16, 16), Shape(1, 128, 2, 2, 24, 16))
WINDOW = AttentionKind("window", window=128)


def list_rows(shape: Shape) -> list[Row]:
    """What is measured for a shape, the plain causal form first."""
    size = 1024 if shape.length <= 4096 else 2048
    size = min(size, shape.length // 4)
    return [
        Row("causal"),
        Row("causal, deterministic", is_deterministic=True),
        Row(f"documents of {size}", document=size),
        Row(f"documents of {size}, deterministic", document=size, is_deterministic=True),
        Row("window of 128", kind=WINDOW._replace(window=min(128, shape.length // 4))),
        Row("chunks", kind=AttentionKind("chunked", chunk=shape.length // 4)),
    ]


def make_inputs(shape: Shape, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """q, k and v."""
    generator = torch.Generator(device).manual_seed(0)
    sizes = ((shape.heads, shape.channels), (shape.kv_heads, shape.channels), (shape.kv_heads, shape.value_channels))
    return [
        torch.randn(
            (shape.batch, shape.length, *size), device=device, dtype=dtype, generator=generator
        ).requires_grad_()
        for size in sizes
    ]


def make_table(shape: Shape, row: Row, device: torch.device) -> Tensor | None:
    """The table of segments of a row."""
    documents = None
    if row.document:
        documents = (torch.arange(shape.length) // row.document).expand(shape.batch, shape.length)
    table = build_segments(documents, row.kind, WHOLE, batch=shape.batch, length=shape.length)
    return None if table is None else table[:, 0].to(device)


@contextmanager
def deterministic(is_on: bool) -> Iterator[None]:
    """torch's deterministic kernels, or not."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(is_on)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def measure(shape: Shape, row: Row, device: torch.device, dtype: torch.dtype, seconds: float) -> dict[str, Any]:
    """Milliseconds of forward and backward, peak memory, and the distance from the naive form."""
    q, k, v = make_inputs(shape, device, dtype)
    table = make_table(shape, row, device)
    scale = shape.channels**-0.5
    grad = torch.ones_like(v[:, :, :1].expand(-1, -1, shape.heads, -1))

    def run() -> Tensor:
        out = attention(q, k, v, table, scale=scale, causal=row.kind.causal, window=row.kind.window)
        out.backward(grad)
        return out

    with deterministic(row.is_deterministic):
        out = run()
        error = find_error(shape, row, (q, k, v), table, out, grad, scale)
        for each in (q, k, v):
            each.grad = None
        milliseconds, peak = time_calls(run, device, seconds)
    return {"shape": shape.name, "row": row.name, "ms": milliseconds, "peak_mib": peak / 2**20, "error": error}


def find_error(
    shape: Shape,
    row: Row,
    inputs: tuple[Tensor, Tensor, Tensor],
    table: Tensor | None,
    out: Tensor,
    grad: Tensor,
    scale: float,
) -> float | None:
    """The largest distance of output and gradients from naive attention in fp32; None where its scores do not fit."""
    if shape.batch * shape.heads * shape.length**2 > 2**32:
        return None
    q, k, v = (each.detach().float().requires_grad_() for each in inputs)
    rule: dict[str, Any] = {"scale": scale, "causal": row.kind.causal, "window": row.kind.window}
    wanted, _ = attend_densely(q, k, v, table, **rule)
    wanted.backward(grad.float())
    pairs = [(out, wanted), *((one.grad, other.grad) for one, other in zip(inputs, (q, k, v), strict=True))]
    return max(((one.float() - other).abs().max() / other.abs().max()).item() for one, other in pairs)


def time_calls(run: Callable[[], Tensor], device: torch.device, seconds: float) -> tuple[float, int]:
    """Mean milliseconds of calls over about `seconds`, and the peak of memory on a GPU."""
    is_gpu = device.type == "cuda"
    if is_gpu:
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    start, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - start < seconds:
        run()
        count += 1
        if is_gpu:
            torch.cuda.synchronize()
    passed = (time.perf_counter() - start) / count * 1e3
    return passed, torch.cuda.max_memory_allocated() if is_gpu else 0


def main() -> int:
    """Measure every row, print the table, write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=0.4)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    found = []
    for shape in TINY if options.tiny else SHAPES:
        first = 0.0
        for row in list_rows(shape):
            result = measure(shape, row, device, dtype, 0.0 if options.tiny else options.seconds)
            first = first or result["ms"]
            result["of_causal"] = result["ms"] / first
            found.append(result)
            error = "-" if result["error"] is None else f"{result['error']:.1e}"
            print(
                f"{result['shape']:34} {result['row']:36} {result['ms']:9.2f} ms {result['of_causal']:6.2f} of causal "
                f"{result['peak_mib']:9.0f} MiB  error {error}",
                flush=True,
            )
    if options.out:
        options.out.write_text(json.dumps({"device": str(device), "torch": torch.__version__, "rows": found}, indent=1))
    wrong = [each for each in found if each["error"] is not None and each["error"] > TOLERANCE[dtype]]
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
