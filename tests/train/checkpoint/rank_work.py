"""What each rank does in test_ranks: functions of a module of their own, since other processes import them."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from monograph.errors import CheckpointError
from monograph.train.checkpoint.config import CheckpointConfig
from monograph.train.checkpoint.disk import Disk
from monograph.train.checkpoint.manager import CheckpointManager
from monograph.train.checkpoint.verify import DamagedError
from tests.train.checkpoint.disks import RefusingDisk

SHARDINGS = {
    "model/rows": ((6, 4), Shard(0), Shard(1)),
    "model/columns": ((3, 8), Shard(1), Shard(0)),
    "model/uneven": ((5, 3), Shard(0), Replicate()),
    "model/one_row": ((1, 4), Shard(0), Shard(1)),
    "model/everywhere": ((4, 4), Replicate(), Shard(0)),
    "model/vector": ((7,), Replicate(), Shard(0)),
    "optimizer/empty": ((0, 4), Shard(0), Shard(0)),
}
"""Name -> shape, one placement, another placement."""
LINE, SQUARE = (2,), (2, 2)


class World:
    """This rank among the others, with a mesh and the group that checkpoints use."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.rank = dist.get_rank()
        self.mesh = dist.init_device_mesh("cpu", shape)
        self._group = dist.new_group(backend="gloo")

    def open(self, folder: Path, disk: Disk | None = None, **settings) -> CheckpointManager:
        return CheckpointManager(CheckpointConfig(**settings), folder=folder, process_group=self._group, disk=disk)

    def shard(self, full: dict[str, torch.Tensor], which: int) -> dict[str, torch.Tensor]:
        """Cut up by the first or the second placement; on a square mesh, by one along each axis."""
        cut = {}
        for name, tensor in full.items():
            if name not in SHARDINGS:
                cut[name] = tensor.clone()
                continue
            _, *choices = SHARDINGS[name]
            placements = choices[which : which + 1] if self.mesh.ndim == 1 else [choices[which], choices[1 - which]]
            cut[name] = distribute_tensor(tensor, self.mesh, placements)
        return cut

    def zeros(self, which: int) -> dict[str, torch.Tensor]:
        return self.shard(make_zeros(), which)


@contextmanager
def joined(shape: tuple[int, ...] = LINE) -> Iterator[World]:
    dist.init_process_group("gloo")
    try:
        yield World(shape)
    finally:
        dist.destroy_process_group()


def make_full(seed: int) -> dict[str, torch.Tensor]:
    """The whole state, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    full = {name: torch.randn(shape, generator=generator) for name, (shape, *_) in SHARDINGS.items()}
    return full | {"plain": torch.tensor([seed, 2]), "scalar": torch.tensor(1.5 * seed)}


def make_zeros() -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in make_full(0).items()}


def check_equal(tensors: dict[str, torch.Tensor], full: dict[str, torch.Tensor]) -> None:
    assert tensors.keys() == full.keys()
    for name, tensor in tensors.items():
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert whole.dtype == full[name].dtype and whole.equal(full[name]), name


def save(folder: Path, seed: int, shape: tuple[int, ...]) -> None:
    with joined(shape) as world, world.open(folder) as manager:
        manager.save(seed, world.shard(make_full(seed), 0), {"step": seed})


def load(folder: Path, seed: int, shape: tuple[int, ...]) -> None:
    with joined(shape) as world, world.open(folder) as manager:
        for which in (0, 1):
            live = world.zeros(which)
            assert manager.load("latest", live).step == seed
            check_equal(live, make_full(seed))


def save_in_the_background(folder: Path) -> None:
    with joined() as world, world.open(folder, async_save=True, keep_last=2) as manager:
        live = world.zeros(0)
        for step in range(1, 5):
            for name, tensor in world.shard(make_full(step), 0).items():
                live[name].copy_(tensor)
            manager.save(step, live, {"step": step})
            dist.all_reduce(torch.ones(1))  # training goes on, over other groups
            for tensor in live.values():
                tensor.zero_()
        manager.wait()
        names = sorted(path.name for path in folder.glob("step-*"))
        assert names == ["step-00000003", "step-00000004"]
        manager.load(4, live)
        check_equal(live, make_full(4))


def fail_on_one_rank(folder: Path) -> None:
    with joined() as world:
        disk = RefusingDisk("write", errno.ENOSPC) if world.rank == 1 else Disk()
        manager = world.open(folder, disk)
        live = world.shard(make_full(1), 0)
        manager.save(1, live, {})
        with pytest.raises(CheckpointError, match="No space left on device"):
            manager.wait()
        dist.barrier()
        assert not [name for name in os.listdir(folder) if "step" in name]
        if world.rank == 1:
            disk.broken = False
        manager.save(2, live, {})
        manager.close()
        assert (folder / "step-00000002" / "manifest.json").exists()


def have_a_bug_on_one_rank(folder: Path) -> None:
    with joined() as world, world.open(folder) as manager:
        mine = {"x": torch.ones(2, dtype=torch.complex64 if world.rank == 1 else torch.float32)}
        with pytest.raises(Exception, match="x cannot be saved"):
            manager.save(1, mine, {})
        manager.save(2, world.shard(make_full(2), 0), {})


def open_different_folders(folder: Path) -> None:
    """As ranks on two machines do whose disks are their own."""
    with joined() as world, pytest.raises(CheckpointError, match="rank 1 does not see the folder"):
        world.open(folder / str(world.rank))


def agree_on_damage(folder: Path) -> None:
    with joined() as world, world.open(folder) as manager:
        for step in (1, 2):
            manager.save(step, world.shard(make_full(step), 0), {})
        dist.barrier()
        if world.rank == 0:
            path = folder / "step-00000002" / "rank-00001.safetensors"
            path.write_bytes(path.read_bytes()[:-1] + b"x")
        dist.barrier()
        live = world.zeros(0)
        with pytest.raises(DamagedError, match=r"rank-00001\.safetensors"):
            manager.load(2, live)
        check_equal(live, make_zeros())
        assert manager.load("latest", live).step == 1
        check_equal(live, make_full(1))
        with pytest.raises(CheckpointError, match="there is no checkpoint of step 9"):
            manager.load(9, live)


def keep_tensors_of_single_ranks(folder: Path) -> None:
    with joined() as world, world.open(folder) as manager:
        mine = {f"rng/{world.rank}": torch.tensor([world.rank + 10])}
        manager.save(1, mine, {})
        live = {f"rng/{world.rank}": torch.tensor([0])}
        manager.load(1, live)
        assert live == mine
        with pytest.raises(CheckpointError, match="does not fit"):
            manager.load(1, {"rng/0": torch.tensor([0])})
