"""What ranks do in the tests of parallel training; results travel back as plain tensors and numbers."""

import itertools
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import monograph.train.trainer
from monograph.errors import ConfigError
from monograph.execute.base import MeshStep
from monograph.parallel.groups import Groups, joined_groups
from monograph.parallel.param_table import ParamTable
from monograph.run import build_step, build_trainer, train
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.data.cursor import Cursor
from monograph.train.folder import RunFolder, reserved_folder
from monograph.train.layout import plan_run_mesh
from monograph.train.startup import Startup
from monograph.train.state import collect_tensors
from monograph.train.trainer import Trainer, TrainingFailed
from monograph.train.update import add_gradients, apply_update

CPU = torch.device("cpu")


@dataclass(kw_only=True)
class Trained:
    """What a short run left behind, put together again on rank 0."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    parameters: dict[str, Tensor] = field(default_factory=dict)
    moments: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def joined(config: TrainerConfig) -> Iterator[Groups]:
    mesh = plan_run_mesh(config, int(os.environ["WORLD_SIZE"]))
    with joined_groups(mesh, CPU, timeout_seconds=config.parallelism.timeout_seconds) as groups:
        yield groups


def gather_full(table: ParamTable, shards: dict[str, Tensor], groups: Groups) -> dict[str, Tensor]:
    """The whole tensors on rank 0 from the shards of all ranks; nothing elsewhere."""
    mine = {name: shard.detach().clone() for name, shard in shards.items()}
    if groups.mesh.world_size == 1:
        parts = [mine]
    else:
        parts = [{} for _ in range(groups.mesh.world_size)] if groups.rank == 0 else None
        dist.gather_object(mine, parts, dst=0, group=groups.checkpoint_group())
    if parts is None:
        return {}
    return {slot.name: table.gather_full(slot, {r: p[slot.name] for r, p in enumerate(parts)}) for slot in table}


def read_batches(config: TrainerConfig, step: MeshStep, updates: int) -> list[list[Batch]]:
    """This rank's micro-batches of the first updates."""
    data = config.dataloader.build(
        tokenizer=config.tokenizer.build(),
        seq_len=config.training.seq_len,
        vocab_size=config.model.vocab_size,
        seed=config.debug.seed,
        split="train",
    )
    part, parts = step.data_part
    local, whole = config.training.local_batch_size, config.training.global_batch_size
    whole = local * parts if whole == -1 else whole
    with data.batches(Cursor(), local_batch_size=local, global_batch_size=whole, part=part, parts=parts) as batches:
        return [[next(batches) for _ in range(whole // (local * parts))] for _ in range(updates)]


def train_updates(config: TrainerConfig) -> Trained:
    """`training.steps` updates without the trainer's surroundings."""
    with joined(config) as groups:
        step = build_step(config, groups)
        optimizer = config.optimizer.build(parameters=step.parameters)
        schedule = config.lr_scheduler.build(peak=config.optimizer.lr, steps=config.training.steps)
        done = Trained()
        for number, batches in enumerate(read_batches(config, step, config.training.steps), start=1):
            loss = add_gradients(step, batches)
            lr = schedule.lr(number)
            updated = apply_update(step, optimizer, loss=loss, lr=lr, max_norm=config.training.max_norm)
            done.losses.append(loss.item())
            done.norms.append(updated.grad_norm.item())
        done.parameters = gather_full(step.table, dict(step.parameters), groups)
        return done


def run_trainer(config: TrainerConfig) -> Trained:
    """The whole trainer: data, updates, checkpoints, resuming."""
    with joined(config) as groups, reserved_folder(config, groups) as folder:
        trainer = build_trainer(config, groups, Startup(), folder)
        trainer.train()
        return collect(trainer, groups)


def claim(config: TrainerConfig) -> str:
    """What a rank is told when it asks for the run's folder; empty when it gets it."""
    with joined(config) as groups:
        try:
            with reserved_folder(config, groups):
                return ""
        except ConfigError as error:
            return str(error)


def collect(trainer: Trainer, groups: Groups) -> Trained:
    step: Any = trainer.step
    moments = {}
    for kind in sorted({kind for kind, _ in trainer.optimizer.state()}):
        shards = {name: value for (which, name), value in trainer.optimizer.state().items() if which == kind}
        moments |= {f"{kind}/{name}": value for name, value in gather_full(step.table, shards, groups).items()}
    buffers = {name: value for name, value in step.model.state_dict().items() if name.endswith("expert_bias")}
    parameters = gather_full(step.table, dict(step.parameters), groups) | buffers
    return Trained(parameters=parameters, moments=moments)


def compute_gradients(config: TrainerConfig) -> dict[str, Any]:
    """One update's gradients, this rank's norm of all of them, and what clipping leaves of one shard."""
    with joined(config) as groups:
        step = build_step(config, groups)
        add_gradients(step, read_batches(config, step, 1)[0])
        full = gather_full(step.table, {name: p.grad for name, p in step.parameters.items()}, groups)
        norm = step.grad_norm()
        before = {name: p.grad.clone() for name, p in step.parameters.items()}
        torch.nn.utils.clip_grads_with_norm_(step.parameters.values(), 0.01, norm)
        factors = {name: p.grad.norm() / before[name].norm() for name, p in step.parameters.items() if p.grad.norm()}
        return {
            "full": full,
            "norm": norm,
            "factors": factors,
            "dtypes": {p.grad.dtype for p in step.parameters.values()},
        }


def read_tokens(config: TrainerConfig) -> dict[str, Any]:
    """What this rank reads in two updates, and its place."""
    with joined(config) as groups:
        step = build_step(config, groups)
        batches = read_batches(config, step, 2)
        return {
            "part": step.data_part,
            "tokens": [torch.cat([b.tensors["tokens"] for b in update]) for update in batches],
        }


def load_each(config: TrainerConfig, paths: list[Path]) -> list[Trained]:
    """Load one checkpoint after another into the same live state."""
    with joined(config) as groups:
        trainer = build_trainer(config, groups, Startup(), RunFolder(config))
        found = []
        for path in paths:
            trainer.checkpoints.load(path, collect_tensors(trainer.step, trainer.optimizer))
            found.append(collect(trainer, groups))
        trainer.checkpoints.close()
        return found


def train_and_die(config: TrainerConfig, victim: int, step: int, mark: Path) -> Trained:
    """The whole trainer, but one rank is killed in the middle of a step; it notes when in `mark`."""

    def update(*args: Any, **kwargs: Any) -> Any:
        if os.environ["RANK"] == str(victim) and next(updates) == step:
            mark.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        return apply_update(*args, **kwargs)

    updates = itertools.count(1)
    with patch.object(monograph.train.trainer, "apply_update", update):
        return run_trainer(config)


def train_into_nan(config: TrainerConfig, rank: int, step: int) -> tuple[str, Trained]:
    """The whole trainer, but one rank's gradient breaks at a step; what it says, and what is left."""

    def update(broken: Any, *args: Any, **kwargs: Any) -> Any:
        if os.environ["RANK"] == str(rank) and next(updates) == step:
            broken.parameters["layers.0.ffn_norm.weight"].grad[0] = float("nan")
        return apply_update(broken, *args, **kwargs)

    updates = itertools.count(1)
    broken = patch.object(monograph.train.trainer, "apply_update", update)
    with broken, joined(config) as groups, reserved_folder(config, groups) as folder:
        trainer = build_trainer(config, groups, Startup(), folder)
        try:
            trainer.train()
        except TrainingFailed as error:
            return str(error), collect(trainer, groups)
    return "", Trained()


def train_and_hang(config: TrainerConfig, victim: int, at_step: int, folder: Path) -> None:
    """Train until one rank is stopped by SIGSTOP; the others note when they gave up. Somebody kills it later."""
    original = monograph.train.trainer.add_gradients
    calls = itertools.count(1)

    class StopInBlock(TorchDispatchMode):
        """Stop at the first matmul of the model's block."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.mm.default:
                (folder / "stopped").write_text(str(time.time()))
                subprocess.Popen(["sh", "-c", f"sleep 7; kill -9 {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
            return func(*args, **(kwargs or {}))

    def stop(*args: Any) -> Tensor:
        is_due = next(calls) == at_step and int(os.environ["RANK"]) == victim
        with StopInBlock() if is_due else nullcontext():
            return original(*args)

    try:
        with patch.object(monograph.train.trainer, "add_gradients", stop):
            train(config)
    except BaseException:
        (folder / "aborted").write_text(str(time.time()))
        raise


def train_with_journal(config: TrainerConfig, folder: Path, kill_at: int) -> None:
    """Train, and note the samples of each update once it is applied; the last rank is killed at a step, 0 never."""
    original = Trainer._apply
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def apply(self: Trainer, number: int, chosen: Any) -> Any:
        if number == kill_at and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        measured = original(self, number, chosen)
        samples = [sample for batch in chosen for sample in batch.tensors["samples"].tolist()]
        line = {"time": time.time(), "step": number, "world": world, "run": f"{world}-{kill_at}", "samples": samples}
        with (folder / f"journal-{world}-{kill_at}-{rank}").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return measured

    with patch.object(Trainer, "_apply", apply):
        train(config)
