"""Times of casts to float8, of kernels that write float8 themselves, and of matmuls: the part `times` of float8.py.

Calls are recorded as a CUDA graph, as in a step. GB/s counts the bytes that the kernels of a line read and write, not
the fewest that would do; lines of what is fused come after those of the same computed one by one.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_CAST_BOTH, FLOAT8_MATMUL
from monograph.kernels.float8_amax import FLOAT8_CAST_AMAX, FLOAT8_CAST_TRANSPOSED
from monograph.kernels.float8_grouped import FLOAT8_GROUPED_MATMUL
from monograph.kernels.float8_norm import FLOAT8_ADD_NORM
from monograph.kernels.float8_swiglu import FLOAT8_SWIGLU, FLOAT8_SWIGLU_BACKWARD
from monograph.kernels.norm import ADD_NORM
from monograph.kernels.swiglu import SWIGLU, SWIGLU_BACKWARD_PACKED_RECOMPUTE

E4M3 = torch.float8_e4m3fn
MATMULS = {
    "1B gate+up": (16384, 2048, 16384),
    "1B down": (16384, 8192, 2048),
    "1B qkv": (16384, 2048, 3072),
    "1B wo": (16384, 2048, 2048),
    "8B gate+up": (8192, 4096, 28672),
    "8B down": (8192, 14336, 4096),
}
"""Name -> tokens, inputs, outputs."""
EXPERTS = {"experts up": (98304, 2048, 1408, 64), "experts down": (98304, 1408, 2048, 64)}
LAYERS = {"1B": (16384, 2048, 8192), "8B": (8192, 4096, 14336), "shared experts": (16384, 2048, 2816)}
"""Name -> tokens, channels of the residual stream, channels of the hidden layer."""


@dataclass(frozen=True)
class Timed:
    """A call, and the bytes that it moves."""

    name: str
    call: Callable[[], object]
    moved: float


def time_ms(function: Callable[[], object], device: str, seconds: float) -> float:
    """Mean time of a call, over about that long."""
    function()
    if device == "cpu":
        return 0.0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    last = 0.0
    for least in (3, 10):
        count = max(least, int(1000 * seconds / last)) if last else least
        start.record()
        for _ in range(count):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        last = start.elapsed_time(end) / count
    return last


def show_times(device: str, shrink: int, seconds: float) -> None:
    """Two tables: what moves bytes, with its rate, and matmuls."""
    print(f"\n{'':44}{'ms':>9}{'MB':>9}{'GB/s':>9}")
    for each in list_memory_bound(device, shrink):
        ms = time_ms(each.call, device, seconds)
        rate = each.moved / ms / 1e6 if ms else 0.0
        print(f"{each.name:44}{ms:9.3f}{each.moved / 1e6:9.0f}{rate:9.0f}", flush=True)
    show_matmuls(device, shrink, seconds)


def list_memory_bound(device: str, shrink: int) -> Iterator[Timed]:
    """Casts of activations and weights, and what is fused with them, layer by layer."""
    for name, (tokens, dim, hidden) in LAYERS.items():
        tokens, dim, hidden = tokens // shrink, dim // shrink, hidden // shrink
        for label, width in (("x", dim), ("hidden", hidden), ("gate+up", 2 * hidden)):
            yield from list_casts(f"{name} {label}", _draw(device, tokens, width), 2)
        weights = _draw(device, 2 * hidden, dim)
        yield from list_casts(f"{name} weight", weights, 2)
        yield from list_casts(f"{name} fp32 weight", weights.float(), 4)
        yield from list_norm(name, device, tokens, dim)
        yield from list_swiglu(name, device, tokens, hidden)
    experts = torch.randn(64 // min(shrink, 16), 1408 // shrink, 2048 // shrink, device=device)
    yield from list_casts("fp32 experts", experts, 4)


def list_casts(name: str, x: Tensor, width: int) -> Iterator[Timed]:
    """By rows, transposed, and both; the last two read once to find largest magnitudes. Then by rows with those of
    columns, and transposed where they are known."""
    count = x.numel()
    name = f"{name} [{', '.join(map(str, x.shape))}]"
    yield Timed(f"{name} rows", lambda: FLOAT8_CAST(x, E4M3, True, False), (width + 1) * count)
    yield Timed(f"{name} transposed", lambda: FLOAT8_CAST(x, E4M3, True, True), (2 * width + 1) * count)
    yield Timed(f"{name} both", lambda: FLOAT8_CAST_BOTH(x, E4M3, True), (2 * width + 2) * count)
    amax = FLOAT8_CAST_AMAX(x, E4M3)[2]
    yield Timed(f"{name} rows, amax", lambda: FLOAT8_CAST_AMAX(x, E4M3), (width + 1) * count)
    yield Timed(f"{name} known", lambda: FLOAT8_CAST_TRANSPOSED(x, amax, E4M3), (width + 1) * count)


def list_norm(name: str, device: str, tokens: int, dim: int) -> Iterator[Timed]:
    """RMS norm of a sum with a cast after it, and writing float8 itself."""
    (x, other), weight = _draw(device, 2, tokens, dim).unbind(), _draw(device, dim)
    count = tokens * dim

    def cast_after() -> object:
        return FLOAT8_CAST(ADD_NORM(x, other, weight, 1e-5)[1], E4M3, True, False)

    yield Timed(f"{name} add_norm, cast", cast_after, (8 + 3) * count)
    yield Timed(f"{name} float8_add_norm", lambda: FLOAT8_ADD_NORM(x, other, weight, 1e-5), (6 + 1) * count)


def list_swiglu(name: str, device: str, tokens: int, hidden: int) -> Iterator[Timed]:
    """SwiGLU and its backward with casts after them, and writing float8 themselves."""
    grad, (x, up) = _draw(device, tokens, hidden), _draw(device, tokens, 2 * hidden).chunk(2, -1)
    count = tokens * hidden

    def cast_after() -> object:
        return FLOAT8_CAST(SWIGLU(x, up), E4M3, True, False)

    def cast_after_backward() -> object:
        both, gate = SWIGLU_BACKWARD_PACKED_RECOMPUTE(grad, x, up)
        return FLOAT8_CAST_BOTH(both, E4M3, True), FLOAT8_CAST(gate, E4M3, True, True)

    def backward() -> object:
        return SWIGLU_BACKWARD_PACKED_RECOMPUTE(grad, x, up)

    yield Timed(f"{name} swiglu, cast", cast_after, (6 + 3) * count)
    yield Timed(f"{name} float8_swiglu", lambda: FLOAT8_SWIGLU(x, up), (4 + 1) * count)
    yield Timed(f"{name} swiglu backward", backward, (6 + 6) * count)
    yield Timed(f"{name} swiglu backward, casts", cast_after_backward, (12 + 12 + 5) * count)
    yield Timed(f"{name} float8_swiglu_backward", lambda: FLOAT8_SWIGLU_BACKWARD(grad, x, up), (6 + 6 + 5) * count)


def show_matmuls(device: str, shrink: int, seconds: float) -> None:
    """Matmuls of each shape in bfloat16 and float8, in milliseconds."""
    print("\nms" + " " * 14 + "".join(name.rjust(12) for name in ("bf16", "fp8 rows", "fp8 tensor")))
    for name, (tokens, inputs, outputs) in MATMULS.items():
        x, w = _draw(device, tokens // shrink, inputs // shrink), _draw(device, outputs // shrink, inputs // shrink)
        calls: list[Callable[[], object]] = [lambda x=x, w=w: x @ w.t()]
        for by_row in (True, False):
            (left, one), (right, other) = (FLOAT8_CAST(each, E4M3, by_row, False) for each in (x, w))
            calls.append(lambda args=(left, right, one, other, True): FLOAT8_MATMUL(*args))
        print(f"{name:16}" + "".join(f"{time_ms(call, device, seconds):12.3f}" for call in calls), flush=True)
    for name, (rows, inputs, outputs, count) in EXPERTS.items():
        experts = count // min(shrink, 16)
        rows, inputs, outputs = (size // shrink // 16 * 16 for size in (rows, inputs, outputs))
        x, w = _draw(device, rows, inputs), _draw(device, experts, outputs, inputs)
        ends = (torch.arange(1, experts + 1, device=device) * rows // experts).int()
        (left, one), (right, other) = (FLOAT8_CAST(each, E4M3, True, False) for each in (x, w))
        calls = [lambda x=x, w=w, ends=ends: torch._grouped_mm(x, w.transpose(1, 2), offs=ends)]
        calls.append(lambda args=(left, right, one, other, ends): FLOAT8_GROUPED_MATMUL(*args))
        print(f"{name:16}" + "".join(f"{time_ms(call, device, seconds):12.3f}" for call in calls), flush=True)


def _draw(device: str, *shape: int) -> Tensor:
    return torch.randn(shape, device=device).bfloat16()
