"""Disks that go wrong at a chosen moment, and the small state that the tests save on them."""

import errno
import os
import shutil
import signal
from pathlib import Path

import torch

from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.checkpoint.disk import Disk
from monograph.train.checkpoint.manager import CheckpointManager

CALLS = ("make_folder", "create", "write", "sync", "sync_folder", "rename", "remove_file", "remove_folder")


class Crash(BaseException):
    """The process is dead. Not an Exception, so that no clean-up code may catch it and act as if it were alive."""


class CountingDisk(Disk):
    """Knows how many changes were made; derived classes do something at call number `at`, counted from 1."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.calls: list[str] = []

    def happen(self, name: str, *arguments: object) -> None:
        """What goes wrong at the chosen call."""

    def tick(self, name: str, *arguments: object) -> None:
        self.calls.append(name)
        if len(self.calls) == self.at:
            self.happen(name, *arguments)


def _count(name: str):
    real = getattr(Disk, name)

    def method(self, *arguments):
        self.tick(name, *arguments)
        return real(self, *arguments)

    return method


for _name in CALLS:
    setattr(CountingDisk, _name, _count(_name))


class CrashingDisk(CountingDisk):
    """Stops the world before a call (half way through a write), and lets nothing happen after that."""

    def happen(self, name: str, *arguments: object) -> None:
        if name == "write":
            file, data = arguments
            os.write(file, data[: len(data) // 2])
        self.lose()
        raise Crash(name)

    def tick(self, name: str, *arguments: object) -> None:
        if self.at and len(self.calls) >= self.at:
            raise Crash("after the end")
        super().tick(name, *arguments)

    def lose(self) -> None:
        """What a power failure takes away; nothing when only the process dies."""


class PowerLossDisk(CrashingDisk):
    """Also takes back, at the crash, every change that was not synced: content of files and names in folders."""

    def __init__(self, at: int = 0) -> None:
        super().__init__(at)
        self._files: dict[int, Path] = {}
        self._unsynced_files: list[Path] = []
        self._undo: list[tuple[Path, str, Path, Path]] = []

    def create(self, path):
        file = super().create(path)
        self._files[file] = path
        self._unsynced_files.append(path)
        self._undo.append((path.parent, "create", path, path))
        return file

    def sync(self, file):
        super().sync(file)
        self._unsynced_files.remove(self._files[file])

    def make_folder(self, path):
        super().make_folder(path)
        self._undo.append((path.parent, "make_folder", path, path))

    def rename(self, old, new):
        super().rename(old, new)
        self._undo.append((old.parent, "rename", old, new))

    def sync_folder(self, path):
        super().sync_folder(path)
        self._undo = [change for change in self._undo if change[0] != path]

    def lose(self) -> None:
        for path in self._unsynced_files:
            path.write_bytes(b"\0" * (path.stat().st_size // 2))
        for _, change, old, new in reversed(self._undo):
            if change == "rename":
                os.rename(new, old)
            elif change == "make_folder":
                shutil.rmtree(new)
            else:
                new.unlink()


class KillingDisk(CountingDisk):
    """A real kill -9 of the process that uses it."""

    def happen(self, name: str, *arguments: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class RefusingDisk(CountingDisk):
    """Fails every call of one kind with an error of the system, from the `at`-th call of any kind on, until healed."""

    def __init__(self, kind: str, code: int = errno.ENOSPC, at: int = 1) -> None:
        super().__init__(at)
        self.kind, self.code, self.broken = kind, code, True

    def tick(self, name: str, *arguments: object) -> None:
        self.calls.append(name)
        if self.broken and name == self.kind and len(self.calls) >= self.at:
            raise OSError(self.code, os.strerror(self.code))


def make_state(seed: int) -> dict[str, torch.Tensor]:
    """A small state with every kind of tensor a run has."""
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(6, 4, generator=generator)
    return {
        "model/embedding.weight": weight,
        "model/head.output.weight": weight.bfloat16() + 1,
        "optimizer/exp_avg/embedding.weight": weight * weight,
        "optimizer/step": torch.tensor(float(seed)),
        "rng/cpu": torch.randint(0, 256, (24,), generator=generator).to(torch.uint8),
        "data/empty": torch.zeros(0, 3),
        "data/counts": torch.arange(5) + seed,
    }


def make_manager(folder: Path, disk: Disk | None = None, **settings) -> CheckpointManager:
    return CheckpointManager(CheckpointConfig(**settings), folder=folder, disk=disk)


def blank(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Live tensors to load into, recognisable as untouched."""
    return {name: torch.full_like(tensor, 7) for name, tensor in state.items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Equal names, types, shapes and bits."""
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype
        and left[name].shape == right[name].shape
        and left[name].reshape(-1).view(torch.uint8).equal(right[name].reshape(-1).view(torch.uint8))
        for name in left
    )


def save_steps(folder: Path, *steps: int, **settings) -> None:
    """Checkpoints of these steps, each with the state of its own number."""
    with make_manager(folder, **settings) as manager:
        for step in steps:
            manager.save(step, make_state(step), {"step": step})


def find_names(folder: Path) -> list[str]:
    """Everything in a folder of checkpoints but its lock."""
    return sorted(path.name for path in folder.iterdir() if path.name != ".lock")


def find_steps(folder: Path) -> list[int]:
    """The steps there are; an error when there is anything else."""
    return [int(name.removeprefix("step-")) for name in find_names(folder)]


def save_new(folder: Path, disk: Disk, step: int, settings: dict) -> None:
    """Go on as a resumed run does, so that the earlier checkpoints are its own, and save state 77."""
    with make_manager(folder, disk, load="latest", **settings) as manager:
        manager.resume(blank(make_state(0)))
        manager.save(step, make_state(77), {"step": step})
