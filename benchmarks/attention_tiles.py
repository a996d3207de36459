"""Which tiles make attention over segments fastest on this GPU (kernels/segment_attention_on_gpu.py).

    python benchmarks/attention_tiles.py             # one GPU: every kernel, shape and choice of tiles
    python benchmarks/attention_tiles.py --quick     # the tiles in use alone, beside cuDNN and FlashAttention

Times are means over calls in a row, by the device's clock.
"""

import argparse
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from monograph.kernels.attention_on_gpu import CUDNN, FLASH, attention, attention_backward
from monograph.kernels.attention_tiles import Tiles, choose_tiles
from monograph.kernels.segment_attention_backward_on_gpu import run_segments_backward
from monograph.kernels.segment_attention_on_gpu import run_segments

FORWARD = [(128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 8, 2), (128, 128, 8, 3), (64, 64, 4, 3), (64, 128, 4, 3)]
FORWARD += [(128, 64, 4, 2), (128, 64, 8, 2), (128, 32, 4, 3)]
QUERIES = [(128, 64, 8, 2), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (128, 32, 4, 3), (64, 128, 4, 2)]
QUERIES += [(128, 128, 8, 2), (64, 64, 4, 2)]
KEYS = [(128, 64, 8, 2), (128, 64, 8, 3), (128, 32, 8, 3), (64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 8, 2)]
KEYS += [(64, 32, 4, 3), (128, 128, 8, 2), (128, 64, 4, 2)]


@dataclass(frozen=True)
class Shape:
    """Sizes of q, k and v, and of the documents packed into a sequence."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    channels: int
    value_channels: int
    document: int
    """0 for plain causal attention."""

    @property
    def name(self) -> str:
        """For the table."""
        kind = f"documents of {self.document}" if self.document else "causal"
        return f"{self.batch} x {self.length}, {self.heads}/{self.kv_heads} heads of {self.channels}, {kind}"


SHAPES = [
    Shape(4, 4096, 32, 8, 64, 64, 1024),
    Shape(4, 4096, 32, 8, 64, 64, 0),
    Shape(1, 32768, 32, 8, 128, 128, 2048),
    Shape(1, 8192, 32, 8, 128, 128, 0),
    Shape(4, 4096, 16, 16, 192, 128, 1024),
    Shape(4, 4096, 16, 16, 192, 128, 0),
]


def make_inputs(shape: Shape) -> tuple[list[Tensor], Tensor | None]:
    """q, k, v and the output's gradient; and the table, with room for a document every 32 tokens."""
    sizes = [(shape.heads, shape.channels), (shape.kv_heads, shape.channels), (shape.kv_heads, shape.value_channels)]
    sizes += [(shape.heads, shape.value_channels)]
    tensors = [torch.randn((shape.batch, shape.length, *size), device="cuda", dtype=torch.bfloat16) for size in sizes]
    if not shape.document:
        return tensors, None
    starts = list(range(0, shape.length, shape.document))
    starts += [shape.length] * (shape.length // 32 + 1 - len(starts))
    row = torch.tensor([starts, starts], dtype=torch.int32, device="cuda")
    return tensors, row.expand(shape.batch, -1, -1).contiguous()


def measure(run: Callable[[], Any], milliseconds: float = 60.0) -> float:
    """Milliseconds of a call."""
    run()
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    count = max(3, min(100, int(milliseconds / max(begin.elapsed_time(end), 1e-3))))
    begin.record()
    for _ in range(count):
        run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / count


def can_run(run: Callable[[], Any]) -> bool:
    """Build it; False where it needs more than the GPU has."""
    try:
        run()
    except Exception as error:
        if "OutOfResources" in type(error).__name__:
            return False
        raise
    return True


def list_runs(shape: Shape, is_quick: bool) -> dict[str, dict[Tiles, Callable[[], Any]]]:
    """Kernel -> tiles -> a call. Calls of backward kernels run both: one has the tiles in use."""
    (q, k, v, grad), table = make_inputs(shape)
    rule: dict[str, Any] = {"scale": shape.channels**-0.5, "causal": True, "window": 0}
    out, lse = run_segments(q, k, v, table, **rule)
    used, used_q, used_k = choose_tiles(shape.channels, shape.value_channels)

    def forward(tiles: Tiles) -> Callable[[], Any]:
        return lambda: run_segments(q, k, v, table, **rule, tiles=tiles)

    def backward(of_q: Tiles, of_k: Tiles) -> Callable[[], Any]:
        return lambda: run_segments_backward(grad, q, k, v, table, out, lse, **rule, tiles=(of_q, of_k))

    def other(kernel: int) -> Callable[[], Any]:
        more = (rule["scale"], True, 0, kernel)

        def run() -> None:
            found, sums = attention(q, k, v, table, None, *more)
            attention_backward(grad, q, k, v, table, None, found, sums, *more)

        return run

    runs = {"forward": {used: forward(used)}, "backward": {used_q: backward(used_q, used_k)}}
    runs["flash, both"] = {used: other(FLASH)}
    if table is None:
        runs["cudnn, both"] = {used: other(CUDNN)}
    if is_quick:
        return runs
    runs["forward"] |= {each: forward(each) for each in map(Tiles._make, FORWARD)}
    runs["of queries (both)"] = {each: backward(each, used_k) for each in map(Tiles._make, QUERIES)}
    runs["of keys (both)"] = {each: backward(used_q, each) for each in map(Tiles._make, KEYS)}
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for shape in SHAPES:
        runs = list_runs(shape, options.quick)
        print(f"\n{shape.name}")
        for kernel, by_tiles in runs.items():
            with ThreadPoolExecutor(16) as pool:
                served = list(pool.map(can_run, by_tiles.values()))
            found = {
                tiles: measure(run)
                for (tiles, run), is_served in zip(by_tiles.items(), served, strict=True)
                if is_served
            }
            best = sorted(found.items(), key=lambda pair: pair[1])
            print(f"  {kernel:20}", "  ".join(f"{tuple(tiles)} {ms:.3f}" for tiles, ms in best[:5]), flush=True)


if __name__ == "__main__":
    main()
