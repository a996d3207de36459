"""How the ranks of a run save and load together: everyone finishes a stage, or everyone learns why not.

One process is the same code with a group of one, so there is no second path. What travels between ranks are objects of
this program over its own connections; nothing that was read from disk is ever unpickled.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch.distributed as dist

from monograph.train.checkpoint.patient_read import UnreadableError

T = TypeVar("T")


class PeerError(Exception):
    """Another rank failed; `from_disk` says whether its storage was to blame."""

    def __init__(self, text: str, *, from_disk: bool) -> None:
        super().__init__(text)
        self.from_disk = from_disk


@dataclass(frozen=True)
class _Problem:
    text: str
    from_disk: bool


class Ranks:
    """This process among those that share a checkpoint. `group` needs a CPU backend (gloo) and must be used by nothing
    else: an asynchronous save communicates over it from a thread of its own. It is held weakly: its owner decides when
    it ends."""

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = None if group is None else weakref.ref(group)
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group of all ranks; None when this process is alone."""
        if self._group is None:
            return None
        found = self._group()
        if found is None:
            raise RuntimeError("the process group that checkpoints are saved over is closed")
        return found

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Every rank's value, on the first rank; an empty list on the others."""
        if self.group is None:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_first else None
        dist.gather_object(value, values, dst=self._first(), group=self.group)
        return values or []

    def scatter(self, values: list[T]) -> T:
        """This rank's entry of the first rank's list."""
        if self.group is None:
            return values[0]
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, values if self.is_first else None, src=self._first(), group=self.group)
        return mine[0]

    def broadcast_object(self, value: T) -> T:
        """The first rank's value, on every rank."""
        if self.group is None:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=self._first(), group=self.group)
        return box[0]

    def all_gather_object(self, value: T) -> list[T]:
        """Every rank's value, on every rank."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def run_on_all_ranks(self, work: Callable[[], T]) -> T:
        """Do `work` on every rank; when it fails on any of them, fail on all, for the same reason."""
        result, error = _attempt(work)
        self._check(self.all_gather_object(None if error is None else _describe(self.rank, error)), error)
        return result  # type: ignore[return-value]

    def run_on_rank0(self, work: Callable[[], T]) -> T | None:
        """Do `work` on the first rank only; the others wait for it, get None, and fail when it fails."""
        result, error = _attempt(work) if self.is_first else (None, None)
        self._check([self.broadcast_object(None if error is None else _describe(self.rank, error))], error)
        return result

    def _first(self) -> int:
        return dist.get_global_rank(self.group, 0) if self.group is not None else 0

    def _check(self, problems: list[_Problem | None], mine: Exception | None) -> None:
        """Raise one verdict everywhere: a fault of the program outweighs one of the storage."""
        found = [problem for problem in problems if problem is not None]
        if not found:
            return
        worst = next((problem for problem in found if not problem.from_disk), found[0])
        if mine is not None and is_disk_error(mine) == worst.from_disk:
            raise mine
        raise PeerError(worst.text, from_disk=worst.from_disk) from mine


def is_disk_error(error: BaseException) -> bool:
    """Whether storage is to blame (full, broken, read-only) rather than the program."""
    return isinstance(error, OSError | UnreadableError) or (isinstance(error, PeerError) and error.from_disk)


def _attempt(work: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return work(), None
    except Exception as error:
        return None, error


def _describe(rank: int, error: Exception) -> _Problem:
    return _Problem(f"rank {rank}: {type(error).__name__}: {error}", is_disk_error(error))
