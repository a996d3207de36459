"""Starting values: the same on every device, for every sharding, from the seed and each parameter's name.

A parameter is seen as rows (its last dim) and drawn in pieces of rows, each piece by its own CPU generator. Whoever
owns some rows draws only the pieces they lie in, and gets the values a single process would have got.

Modules say how they start: `plan_init()` describes the random and constant parameters they own directly, `reset()`
brings everything else (tables, biases, counters, ties) into its first state.
"""

import hashlib
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from monograph.models.staging import Staging, staging_on

PIECE_NUMEL = 1 << 18
"""Values drawn by one generator: small enough to waste little at a shard's border, large enough to be fast."""
PIECES_AT_ONCE = 4
"""What one thread draws and copies at a time: enough to keep it busy, few enough for all threads to end together."""
MAX_THREADS = 16
SWITCH_SECONDS = 1e-4
"""How long one thread may keep Python's lock while others wait for it."""
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
    *,
    columns: slice = slice(None),
    out: Tensor | None = None,
) -> Tensor:
    """Rows [start, stop) of a parameter with this GLOBAL shape, and of those some columns.

    Written to `out` when there is one, of any dtype, on the CPU. Pieces that fit are drawn where they belong.
    """
    width = shape[-1]
    rows = torch.Size(shape).numel() // width
    stop = rows if stop is None else stop
    if out is None:
        out = torch.empty(stop - start, len(range(width)[columns]), dtype=torch.float32, device="cpu")
    for piece in plan_pieces(rows, width, start, stop):
        first, last = max(start, piece.start), min(stop, piece.stop)
        height, place = piece.stop - piece.start, out[first - start : last - start]
        # Not for other dtypes or strides, from which torch would draw other numbers.
        if place.shape == (height, width) and place.dtype is torch.float32 and place.is_contiguous():
            draw_piece(seed, name, piece.index, height, width, std, place)
        else:
            drawn = draw_piece(seed, name, piece.index, height, width, std)
            place.copy_(drawn[first - piece.start : last - piece.start, columns])
    return out


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows [start, stop) of a parameter with this GLOBAL shape, of those some columns, and where they belong."""

    target: Tensor
    name: str
    shape: tuple[int, ...]
    std: float
    start: int
    stop: int
    columns: slice


def plan_parts(
    target: Tensor, name: str, shape: tuple[int, ...], std: float, first: int = 0, columns: slice = slice(None)
) -> Iterator[Part]:
    """A run of rows, of which `first` is the first, in parts of whole pieces (but for the run's own ends)."""
    step = PIECES_AT_ONCE * rows_in_piece(shape[-1])
    end = first + len(target)
    for border in range(first - first % step, end, step):
        start, stop = max(first, border), min(end, border + step)
        place = target[start - first : stop - first]
        yield Part(target=place, name=name, shape=shape, std=std, start=start, stop=stop, columns=columns)


def fill_parts(parts: Sequence[Part], seed: int) -> None:
    """Draw all parts where they belong, with every processor this machine has; done when this returns."""
    with lock_handed_on():
        for device in {part.target.device: None for part in parts}:
            _fill_on(device, deque(part for part in parts if part.target.device == device), seed)


@contextmanager
def lock_handed_on() -> Iterator[None]:
    """Inside, a thread that waits for Python's lock gets it soon.

    Drawing needs it for microseconds every millisecond. A thread that imports modules meanwhile hands it on after five,
    and drawing would take ten times as long.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _fill_on(device: torch.device, waiting: deque[Part], seed: int) -> None:
    max_bytes = max(part.target.numel() * part.target.element_size() for part in waiting)
    after = torch.cuda.current_stream(device) if device.type == "cuda" else None

    @torch.no_grad()
    def work() -> None:
        try:
            with nullcontext() if after is None else staging_on(device, max_bytes, after=after) as staging:
                while (part := _take(waiting)) is not None:
                    _fill(part, seed, staging)
        except BaseException:
            waiting.clear()  # the others need not go on
            raise

    threads = min(MAX_THREADS, os.cpu_count() or 1, len(waiting))
    with ThreadPoolExecutor(max_workers=threads) as pool:
        for done in [pool.submit(work) for _ in range(threads)]:
            done.result()


def _take(waiting: deque[Part]) -> Part | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _fill(part: Part, seed: int, staging: Staging | None) -> None:
    target = part.target
    place = target if staging is None else staging.find_place(target)
    where = (seed, part.name, part.shape, part.std, part.start, part.stop)
    if place.device.type == "cpu":
        draw_rows(*where, columns=part.columns, out=place)
    else:
        place.copy_(draw_rows(*where, columns=part.columns))
    if staging is not None:
        staging.send(place, target)


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
    parts: list[Part] = []
    for name, parameter in model.named_parameters():
        start = plan[name]
        if isinstance(start, Constant):
            parameter.fill_(start.value)
        else:
            rows = parameter.view(-1, parameter.shape[-1])
            parts += plan_parts(rows, name, tuple(parameter.shape), start.std)
    fill_parts(parts, seed)


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
