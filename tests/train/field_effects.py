"""Ways to look at what a configuration does, for tests that flip one field: each returns something to compare.

From cheap to costly: what is built, the batches, two updates in eager mode, the captured graph after all passes, and a
whole short run with everything it leaves in its folder.
"""

import itertools
import re
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from monograph.errors import DataError
from monograph.execute.device import find_device
from monograph.parallel.groups import Groups, fake_groups, joined_groups
from monograph.parallel.mesh import Mesh
from monograph.run import build_step, plan_pipeline, train
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import Batch
from monograph.train.data.cursor import Cursor
from monograph.train.data.dataset_name import find_source
from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.train.lr_plan import plan_lr
from monograph.train.update import add_gradients, apply_update
from tests.execute.updates import CPU, buffers_of, digest
from tests.kit.capture import prepare
from tests.kit.runs import open_trainer, read_exact, read_records

UPDATES = 2
"""Enough for weight decay and both moments of AdamW to show."""


@contextmanager
def single_rank():
    """The groups of one process."""
    with joined_groups(Mesh(), CPU) as groups:
        yield groups


def make_batch(config: TrainerConfig) -> Batch:
    """Random tokens of two documents in every sequence."""
    shape = (config.training.local_batch_size, config.training.seq_len)
    random = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 256, shape, generator=random)
    documents = (torch.arange(shape[1]) >= shape[1] // 3).long().expand(shape).contiguous()
    positions = torch.arange(shape[1]).expand(shape).contiguous()
    tensors = {"tokens": tokens, "labels": tokens.roll(-1, dims=1), "positions": positions, "documents": documents}
    tensors["samples"] = torch.arange(tokens.shape[0])
    return Batch(tensors, Cursor())


def see_update(config: TrainerConfig) -> Any:
    """Loss, gradient norm, parameters and buffers of updates in eager mode, and the learning rates of the run."""
    with single_rank() as groups:
        step = build_step(config, groups)
        optimizer = config.optimizer.build(parameters=step.parameters, weight_cache=step.weight_cache)
        scheduler = plan_lr(config.lr_scheduler, peak=config.optimizer.lr, steps=config.training.steps).plan
        seen: list[Any] = [[scheduler.lr(number) for number in range(1, config.training.steps + 1)]]
        for number in range(1, UPDATES + 1):
            loss = add_gradients(step, [make_batch(config)])
            rate = scheduler.lr(number)
            done = apply_update(step, optimizer, loss=loss, lr=rate, max_norm=config.training.max_norm)
            seen.append((loss.item(), done.grad_norm.item()))
        return seen, digest(dict(step.parameters) | buffers_of(step))


def see_graph(config: TrainerConfig) -> str:
    """The captured step after all passes, as rank 0 of the mesh that the degrees ask for."""
    mesh = plan_run_mesh(config, count_ranks(config.parallelism))
    with fake_groups(mesh, 0, CPU) as groups:
        return prepare(config, groups).capture_and_pass().graph.text(folded=False)


def see_pipeline(config: TrainerConfig) -> str:
    """What rank 0 of the mesh that the degrees ask for runs, and when."""
    mesh = plan_run_mesh(config, count_ranks(config.parallelism))
    with fake_groups(mesh, 0, CPU) as groups:
        if mesh.pp == 1:
            return "one graph"
        pipeline = plan_pipeline(config, groups)
        return f"{pipeline.schedule.text()} {pipeline.plan}"


def see_step(config: TrainerConfig) -> Any:
    """Which kind of step runs, and who compiles what of it."""

    def describe(groups: Groups) -> Any:
        step = build_step(config, groups)
        compiled = sorted({type(module).__name__ for module in step.model.modules() if "Compiled" in str(type(module))})
        return type(step).__name__, step.backend and step.backend.name, compiled

    with single_rank() as groups:
        return describe(groups)


def see_batches(config: TrainerConfig) -> Any:
    """The first batches of both splits."""
    tokenizer = config.tokenizer.build()
    settings: dict[str, Any] = {"seq_len": config.training.seq_len, "vocab_size": config.model.vocab_size}
    data = config.dataloader.build(tokenizer=tokenizer, seed=config.debug.seed, split="train", **settings)
    seen = []
    for loader in (data, *data.open_validation_sets().values()):
        with loader.batches(Cursor(), local_batch_size=2, global_batch_size=2) as batches:
            seen += [batch.tensors["tokens"].tolist() for batch in itertools.islice(batches, 3)]
            seen.append(batches._queue.depth)
    return seen


def see_stream(config: TrainerConfig) -> Any:
    """What a hub is asked for, how often a broken connection is tried again, and the order of the documents."""
    asked = []

    def open_hub(name: str, **settings: Any) -> Any:
        asked.append((name, settings))
        texts = [{"text": f"{number} " * 40, "other": f"{number}! " * 40} for number in range(40)]
        return lambda: [lambda: texts[:20], lambda: texts[20:]]

    def open_broken(name: str, **settings: Any) -> Any:
        def fail() -> Any:
            raise ConnectionError("gone")

        return fail

    pauses: list[float] = []
    with patch("monograph.train.data.sources.open_hub", open_broken), pytest.raises(DataError):
        list(find_source(config.dataloader.dataset, config.dataloader).build().read(pauses.append))
    with patch("monograph.train.data.sources.open_hub", open_hub):
        return asked, len(pauses), see_batches(config)


def see_trainer(config: TrainerConfig) -> Any:
    """What the trainer was built with, as far as a short run would not show it."""
    with open_trainer(config) as trainer:
        try:
            monitor, optimizer = trainer.load_monitor, trainer.optimizer
            watched = (monitor.is_on, monitor.limit, monitor.patience) if config.model.find_moe() else None
            return watched, trainer.meter.peak_flops, optimizer.is_fused
        finally:
            trainer.step.close()


def see_run(config: TrainerConfig) -> Any:
    """A whole run: its exact numbers, which others it reports, what it prints and logs, and the files it leaves."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        train(config)
    folder = Path(config.job.dump_folder)
    files = sorted(str(path.relative_to(folder.parent)) for path in folder.parent.rglob("*") if path.is_file())
    names = [sorted(record) for record in read_records(folder)]
    log = (folder / "logs" / "rank-0.log").read_text() if (folder / "logs" / "rank-0.log").exists() else ""
    printed = [line for line in said.getvalue().splitlines() if "step" in line]
    return (
        read_exact(folder),
        names,
        [re.sub(r"\d{10,}", "", name) for name in files],
        len(log.splitlines()),
        len(printed),
    )


def see_device(config: TrainerConfig) -> str:
    """The device of the run."""
    return str(find_device(config.debug.device))


def see_determinism(config: TrainerConfig) -> bool:
    """Whether only deterministic kernels run once training begins."""
    seen: list[bool] = []

    def stop(*_: Any, **__: Any) -> None:
        seen.append(torch.are_deterministic_algorithms_enabled())
        raise DataError("this is enough")

    with patch("monograph.run.build_trainer", stop), pytest.raises(DataError, match="this is enough"):
        train(config)
    return seen[0]
