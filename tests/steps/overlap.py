"""A tiny model run chunk by chunk in every way there is, compared bit for bit. A file of its own: ranks import it."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monograph.commands.precompile import precompile
from monograph.parallel.groups import joined_groups
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.execute.updates import CPU, differences, make_updates, small

ROUTINGS = ((), (0,), (2, 3))
MODES = {
    "block batch": {"modules": "layers.*", "chunk_dim": "batch"},
    "block seq": {"modules": "layers.*", "chunk_dim": "seq"},
    "experts batch": {"modules": "layers.*.moe", "chunk_dim": "batch"},
    "experts seq": {"modules": "layers.*.moe", "chunk_dim": "seq"},
}
Options = Mapping[str, Any]


def overlapped(
    model: str, folder: str | Path, *, mode: str, options: Options, changes: Options | None = None, **degrees: int
) -> TrainerConfig:
    """A tiny run with chunks; `mode` is a compile mode, `options` are those of compile.expert_overlap."""
    fixed = {"parallelism.fsdp": "graph", "compile.mode": mode, "training.local_batch_size": 4}
    overlap = {f"compile.expert_overlap.{name}": value for name, value in options.items()}
    return small(model, Path(folder), {**fixed, **overlap, **(changes or {})}, **degrees)


def compare_strategies(
    model: str,
    folder: str,
    options: Options,
    ways: Mapping[str, Options],
    routings: tuple[tuple[int, ...], ...] = ROUTINGS,
    extra: Options | None = None,
    **degrees: int,
) -> dict[str, list[str]]:
    """On one rank of a launched world, or alone: for each way the tensors that differ from eager chunking.

    A way is the strategy and changes to the passes; `extra` holds for eager chunking too.
    """
    eager = overlapped(model, folder, mode="eager", options={**options, "strategy": "trace"}, changes=extra, **degrees)
    with joined_groups(plan_run_mesh(eager, int(os.environ.get("WORLD_SIZE", "1"))), CPU) as groups:
        wanted = make_updates(eager, groups, routings=routings)
        found = {}
        for name, way in ways.items():
            changes = {**(extra or {}), **{key: value for key, value in way.items() if "." in key}}
            chosen = {**options, **{key: value for key, value in way.items() if "." not in key}}
            config = overlapped(model, folder, mode="graph", options=chosen, changes=changes, **degrees)
            found[name] = differences(wanted, make_updates(config, groups, routings=routings))
        return found


def precompile_overlapped(folder: str, target: str, ranks: int, options: Options, **degrees: int) -> None:
    """An artifact of a chunked step of one block, as `monograph precompile` makes it."""
    config = overlapped("qwen3_moe", folder, mode="graph", options=options, changes={"model.n_layers": 1}, **degrees)
    precompile(config, plan_run_mesh(config, ranks), Path(target))


def compare_artifact(folder: str, artifact: str, options: Options, degrees: Mapping[str, int]) -> list[str]:
    """On one rank: the tensors that differ between eager chunking and training from the artifact."""
    one = {"model.n_layers": 1}
    eager = overlapped(
        "qwen3_moe", folder, mode="eager", options={**options, "strategy": "trace"}, changes=one, **degrees
    )
    changes = {**one, "compile.artifact": artifact}
    loaded = overlapped("qwen3_moe", folder, mode="graph", options=options, changes=changes, **degrees)
    with joined_groups(plan_run_mesh(eager, int(os.environ.get("WORLD_SIZE", "1"))), CPU) as groups:
        wanted, found = (make_updates(config, groups, routings=ROUTINGS) for config in (eager, loaded))
    return differences(wanted, found)
