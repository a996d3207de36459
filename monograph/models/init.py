"""Starting values: the same on every device, for every sharding, from the seed and each parameter's name.

A parameter is seen as rows (its last dim) and drawn in pieces of rows, each piece by its own CPU generator. Whoever
owns some rows draws only the pieces they lie in, and gets the values a single process would have got.

Modules say how they start: `plan_init()` describes the random and constant parameters they own directly, `reset()`
brings everything else (tables, biases, counters, ties) into its first state.
"""

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

PIECE_NUMEL = 1 << 18
"""Values drawn by one generator: small enough to waste little at a shard's border, large enough to be fast."""
CUT = 3.0
"""No value lies further than this many standard deviations from zero."""


@dataclass(frozen=True)
class Normal:
    """Drawn from a normal distribution around zero, cut at three standard deviations."""

    std: float


@dataclass(frozen=True)
class Constant:
    """The same value everywhere."""

    value: float


Start = Normal | Constant


def seed_of(seed: int, name: str, piece: int) -> int:
    """The generator seed of one piece of one parameter: unrelated to that of any other piece, name or seed."""
    digest = hashlib.sha256(f"{seed}/{name}/{piece}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def draw_piece(
    seed: int, name: str, piece: int, rows: int, width: int, std: float, out: Tensor | None = None
) -> Tensor:
    """The values of one whole piece, in fp32 on the CPU; written to `out` when there is one.

    Cut by numpy: torch would divide the work among threads, of which there are many here already.
    """
    generator = torch.Generator().manual_seed(seed_of(seed, name, piece))
    values = torch.empty(rows, width, dtype=torch.float32, device="cpu") if out is None else out
    values.normal_(0.0, std, generator=generator)
    plain = values.numpy()
    np.clip(plain, np.float32(-CUT * std), np.float32(CUT * std), out=plain)
    return values


@dataclass(frozen=True)
class Piece:
    """A run of rows that one generator draws."""

    index: int
    start: int
    stop: int


def rows_in_piece(width: int) -> int:
    """How many rows of this width one generator draws."""
    return max(1, PIECE_NUMEL // width)


def plan_pieces(rows: int, width: int, start: int = 0, stop: int | None = None) -> Iterator[Piece]:
    """The pieces that the rows [start, stop) of a parameter lie in; their borders do not depend on the range."""
    step = rows_in_piece(width)
    stop = rows if stop is None else stop
    for index in range(start // step, -(-stop // step)):
        yield Piece(index, index * step, min(rows, (index + 1) * step))


def draw_rows(
    seed: int,
    name: str,
    shape: tuple[int, ...],
    std: float,
    start: int = 0,
    stop: int | None = None,
) -> Tensor:
    """Rows [start, stop) of a parameter with this GLOBAL shape, as [stop - start, shape[-1]]."""
    width = shape[-1]
    rows = torch.Size(shape).numel() // width
    stop = rows if stop is None else stop
    out = torch.empty(stop - start, width, dtype=torch.float32, device="cpu")
    for piece in plan_pieces(rows, width, start, stop):
        first, last = max(start, piece.start), min(stop, piece.stop)
        height, place = piece.stop - piece.start, out[first - start : last - start]
        if len(place) == height:
            draw_piece(seed, name, piece.index, height, width, std, place)
        else:
            drawn = draw_piece(seed, name, piece.index, height, width, std)
            place.copy_(drawn[first - piece.start : last - piece.start])
    return out


def plan_init(model: nn.Module) -> dict[str, Start]:
    """How each parameter of the model starts, under the name it has in the whole model (the first, when tied)."""
    plan: dict[str, Start] = {}
    for path, module in model.named_modules():
        describe = getattr(module, "plan_init", None)
        if describe is not None:
            plan.update({f"{path}.{name}".lstrip("."): start for name, start in describe().items()})
    names = [name for name, _ in model.named_parameters()]
    missing = [name for name in names if name not in plan]
    if missing:
        raise TypeError(f"no module says how these parameters start: {', '.join(missing)}")
    return {name: plan[name] for name in names}


def reset(model: nn.Module) -> None:
    """Bring tables, biases, counters and tied weights into their first state; leaves other parameters alone."""
    for module in model.modules():
        restore = getattr(module, "reset", None)
        if restore is not None:
            restore()


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Give every parameter and buffer of a model (built on any device, or emptied from meta) its first value."""
    reset(model)
    plan = plan_init(model)
    jobs: list[tuple[Tensor, str, Piece, int, float]] = []
    for name, parameter in model.named_parameters():
        start = plan[name]
        if isinstance(start, Constant):
            parameter.fill_(start.value)
            continue
        width = parameter.shape[-1]
        rows = parameter.view(-1, width)
        jobs.extend((rows, name, piece, width, start.std) for piece in plan_pieces(rows.shape[0], width))

    def fill(job: tuple[Tensor, str, Piece, int, float]) -> None:
        rows, name, piece, width, std = job
        values = draw_piece(seed, name, piece.index, piece.stop - piece.start, width, std)
        with torch.no_grad():
            rows[piece.start : piece.stop].copy_(values)

    with ThreadPoolExecutor(max_workers=min(16, os.cpu_count() or 1)) as pool:
        for _ in pool.map(fill, jobs):
            pass


def materialize(model: nn.Module, *, device: torch.device | str, dtype: torch.dtype) -> nn.Module:
    """Give a model built on the meta device memory: parameters in `dtype`, buffers in the dtype they were made with.

    (`model.to(dtype)` would round the experts' biases and the rotary table too.) Values are undefined until
    `initialize`, or `reset` and a load.
    """
    with torch.no_grad():
        for module in model.modules():
            for name, parameter in module.named_parameters(recurse=False):
                empty = torch.empty(parameter.shape, dtype=dtype, device=device)
                setattr(module, name, nn.Parameter(empty, requires_grad=parameter.requires_grad))
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, torch.empty_like(buffer, device=device))
    return model
