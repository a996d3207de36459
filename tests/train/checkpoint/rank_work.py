"""What each of two ranks does in test_ranks: a file of its own, because the ranks are new processes that import it."""

import errno
import os
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
"""Name -> shape, placement when saved, placement when loaded."""


def make_full(seed: int) -> dict[str, torch.Tensor]:
    """The whole state, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    full = {name: torch.randn(shape, generator=generator) for name, (shape, *_) in SHARDINGS.items()}
    return full | {"plain": torch.tensor([seed, 2]), "scalar": torch.tensor(1.5 * seed)}


def shard(full: dict[str, torch.Tensor], mesh, which: int) -> dict[str, torch.Tensor]:
    return {
        name: distribute_tensor(tensor, mesh, [SHARDINGS[name][1 + which]]) if name in SHARDINGS else tensor.clone()
        for name, tensor in full.items()
    }


def gather(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for name, tensor in tensors.items()}


def check_equal(tensors: dict[str, torch.Tensor], full: dict[str, torch.Tensor]) -> None:
    assert tensors.keys() == full.keys()
    for name, tensor in gather(tensors).items():
        assert tensor.dtype == full[name].dtype and tensor.equal(full[name]), name


def start(rank: int, folder: Path) -> None:
    """Entry point of one rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "rendezvous"), 2), rank=rank, world_size=2)
    try:
        work = Work(rank, folder)
        work.save_and_reshard()
        work.load_what_one_process_saved()
        work.save_in_the_background()
        work.fail_on_one_rank()
        work.agree_on_damage()
        work.keep_values_of_single_ranks()
    finally:
        dist.destroy_process_group()


class Work:
    def __init__(self, rank: int, folder: Path) -> None:
        self.rank, self.folder = rank, folder
        self.mesh = dist.init_device_mesh("cpu", (2,))

    def open(self, name: str, disk: Disk | None = None, **settings) -> CheckpointManager:
        group = dist.new_group(backend="gloo")
        return CheckpointManager(
            CheckpointConfig(**settings), folder=self.folder / name, process_group=group, disk=disk
        )

    def zeros(self, which: int) -> dict[str, torch.Tensor]:
        return shard({name: torch.zeros_like(tensor) for name, tensor in make_full(0).items()}, self.mesh, which)

    def save_and_reshard(self) -> None:
        with self.open("two") as manager:
            manager.save(1, shard(make_full(1), self.mesh, 0), {"step": 1})
            names = sorted(os.listdir(self.folder / "two" / "step-00000001"))
            assert names == ["manifest.json", "rank-00000.safetensors", "rank-00001.safetensors"]
            for which in (0, 1):
                live = self.zeros(which)
                assert manager.load("latest", live).values == {"step": 1}
                check_equal(live, make_full(1))

    def load_what_one_process_saved(self) -> None:
        with self.open("unused") as manager:
            live = self.zeros(1)
            manager.load(self.folder / "one", live)
            check_equal(live, make_full(5))

    def save_in_the_background(self) -> None:
        with self.open("background", async_save=True, keep_last=2) as manager:
            live = shard(make_full(0), self.mesh, 0)
            for step in range(1, 5):
                for name, tensor in shard(make_full(step), self.mesh, 0).items():
                    live[name].copy_(tensor)
                manager.save(step, live, {"step": step})
                dist.all_reduce(torch.ones(1))  # training goes on, over other groups
                for tensor in live.values():
                    tensor.zero_()
            manager.wait()
            assert sorted(path.name for path in (self.folder / "background").glob("step-*")) == [
                "step-00000003",
                "step-00000004",
            ]
            manager.load(4, live)
            check_equal(live, make_full(4))

    def fail_on_one_rank(self) -> None:
        """A full disk under one rank: both go on, both know at the end, and nothing is left behind."""
        disk = RefusingDisk("write", errno.ENOSPC) if self.rank == 1 else Disk()
        manager = self.open("full", disk)
        live = shard(make_full(1), self.mesh, 0)
        manager.save(1, live, {})
        with pytest.raises(CheckpointError, match="No space left on device"):
            manager.wait()
        dist.barrier()
        assert not [name for name in os.listdir(self.folder / "full") if "step" in name]
        if self.rank == 1:
            disk.broken = False
        manager.save(2, live, {})
        manager.close()
        assert (self.folder / "full" / "step-00000002" / "manifest.json").exists()

    def agree_on_damage(self) -> None:
        """The file of rank 1 is damaged; a rank that reads other files learns of it, and both fall back together."""
        with self.open("damage") as manager:
            for step in (1, 2):
                manager.save(step, shard(make_full(step), self.mesh, 0), {})
            dist.barrier()
            if self.rank == 0:
                path = self.folder / "damage" / "step-00000002" / "rank-00001.safetensors"
                path.write_bytes(path.read_bytes()[:-1] + b"x")
            dist.barrier()
            live = self.zeros(0)
            with pytest.raises(DamagedError, match=r"rank-00001\.safetensors"):
                manager.load(2, live)
            check_equal(live, {name: torch.zeros_like(tensor) for name, tensor in make_full(0).items()})
            assert manager.load("latest", live).step == 1
            check_equal(live, make_full(1))
            with pytest.raises(CheckpointError, match="there is no checkpoint of step 9"):
                manager.load(9, live)

    def keep_values_of_single_ranks(self) -> None:
        """A tensor that only one rank has (its random state, say) is saved and loaded by that rank alone."""
        with self.open("own") as manager:
            mine = {f"rng/{self.rank}": torch.tensor([self.rank + 10])}
            manager.save(1, mine, {})
            live = {f"rng/{self.rank}": torch.tensor([0])}
            manager.load(1, live)
            assert live == mine
            with pytest.raises(CheckpointError, match="does not fit"):
                manager.load(1, {"rng/0": torch.tensor([0])})
