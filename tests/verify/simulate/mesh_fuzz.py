"""Random runs of all families on random meshes, simulated: `make test-fuzz`, or `--seed 17` for one.

    python -m tests.verify.simulate.mesh_fuzz [--count 300] [--first 0] [--seconds 600] [--agree]

A seed decides a family, a mesh of at most 256 ranks and options of its step; what the config refuses is drawn again.
The simulation must find the mesh equal to one device. With --agree a seed decides a mesh of at most four ranks, and one
of the faults of seeded_bugs.py or none: the simulation's verdict must be that of `verify` on real ranks.
"""

import math
import random
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from monograph.errors import ConfigError
from monograph.train.config import TrainerConfig
from monograph.train.layout import count_ranks
from monograph.verify.simulate.run import simulate
from tests.kit.fuzzing import Failed, run_fuzzer
from tests.kit.ranks import pool
from tests.steps.graph_draw import Drawn
from tests.verify.on_ranks import verify_briefly
from tests.verify.seeded_bugs import BUGS, Bug
from tests.verify.simulate.mesh_draw import FAMILIES, draw_accepted, draw_mesh, draw_on_mesh, draw_run
from tests.verify.simulate.test_locate import BLAMES, OUTSIDE

MOST_SECONDS = 10.0
"""Processor time that a mesh of at most 256 ranks should take."""
PATIENCE_SECONDS = 120.0
FAULTS = tuple(BLAMES | OUTSIDE)
AXES = ("dp_replicate", "dp_shard", "cp", "tp", "ep", "etp", "pp")
_DEGREES = {"replicate": "dp_replicate", "shard": "dp_shard", "pipeline_parallel_degree": "pp"}


def check_mesh(seed: int, folder: Path) -> list[str]:
    """Simulate the run of a seed, which must be equal."""
    drawn, config, refused = draw_accepted(seed, folder, draw_run)
    start = time.process_time()
    try:
        found = simulate(config, drawn.mesh, every_pass=seed % 10 == 0 and drawn.mesh.world_size <= 16)
    except Exception as error:
        error.add_note(describe(drawn, folder))
        raise
    seconds = time.process_time() - start
    if not found.is_equal:
        raise Failed(f"{found.blame}\n{describe(drawn, folder)}")
    slow = [f"over {MOST_SECONDS:.0f} s of processor time"] if seconds > MOST_SECONDS else []
    return [*list_labels(drawn, config), *(f"drawn again for {what}" for what in refused), *slow]


def list_labels(drawn: Drawn, config: TrainerConfig) -> list[str]:
    """What is counted about a run."""
    mesh, parallelism = drawn.mesh, config.parallelism
    axes = [axis for axis in AXES if getattr(mesh, axis) > 1]
    methods = [f"cp {mesh.cp_method}"] * (mesh.cp > 1) + [parallelism.pipeline_schedule] * (mesh.pp > 1)
    sections = sorted({".".join(name.split(".")[:2]) for name in drawn.changes if name.startswith("passes.")})
    return [drawn.model, f"world {mesh.world_size}", *axes, *methods, *sections]


def describe(drawn: Drawn, folder: Path) -> str:
    """The command that simulates the same run on the built-in data."""
    return f"{drawn.mesh}\n{drawn.command('verify', folder)} --simulate"


def draw_small(pick: random.Random, seed: int) -> Drawn:
    """A run on at most four ranks, whose mesh has the axes of the seed's fault."""
    bug = BUGS[find_fault(seed)] if find_fault(seed) else None
    model = pick.choice(FAMILIES) if bug is None else bug.model
    wanted = set() if bug is None else find_axes(bug)
    while True:
        mesh = draw_mesh(pick, model, pick.choice((2, 2, 2, 3, 4)))
        if all(getattr(mesh, axis) > 1 for axis in wanted):
            break
    if bug is not None and mesh.cp > 1:
        method = bug.degrees.get("method", "all_gather")
        mesh = replace(mesh, cp_method=method, cp_gather=bug.degrees.get("gather", "auto"))
    drawn = draw_on_mesh(pick, seed, model, mesh)
    drawn.degrees["fsdp"] = "graph"
    return drawn if bug is None else replace(drawn, changes=drawn.changes | bug.changes)


def find_axes(bug: Bug) -> set[str]:
    """The axes that a mesh needs for a fault to show."""
    degrees = {_DEGREES.get(name, name): degree for name, degree in bug.degrees.items() if isinstance(degree, int)}
    ranks = math.prod(degree for axis, degree in degrees.items() if axis not in ("ep", "etp"))
    return {*degrees, "dp_shard"} if ranks < bug.ranks else {*degrees}


def find_fault(seed: int) -> str:
    """The fault that a seed plants: none, for one in four."""
    return "" if seed % 4 == 0 else random.Random(f"fault {seed}").choice(FAULTS)


def check_agreement(seed: int, folder: Path) -> list[str]:
    """Compare the simulation's verdict on a seed, on at most four ranks and with a fault, with that of real ranks."""
    drawn, config, refused = draw_accepted(seed, folder, draw_small)
    name = find_fault(seed)
    with BUGS[name].plant() if name else nullcontext():
        simulated = read_simulation(config, drawn)
    verified = read_verify(drawn.eager(folder) if seed % 3 else config, name)
    if bool(simulated) != bool(verified):
        verdicts = f"simulated: {simulated or 'equal'}\nverified: {verified or 'equal'}"
        raise Failed(f"fault: {name or 'none'}\n{verdicts}\n{describe(drawn, folder)}")
    verdict = "both refuse" if simulated else "both find equal"
    return [verdict, *list_labels(drawn, config), *(f"drawn again for {what}" for what in refused), name or "no fault"]


def read_simulation(config: TrainerConfig, drawn: Drawn) -> str:
    """What the simulation blames; empty where it finds the mesh equal."""
    try:
        return simulate(config, drawn.mesh).blame
    except ConfigError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def read_verify(config: TrainerConfig, name: str) -> str:
    """The same of `verify`."""
    try:
        ranks = count_ranks(config.parallelism)
        verdict = pool.run(ranks, verify_briefly, config, name, timeout_seconds=PATIENCE_SECONDS)[0]
    except ConfigError:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if verdict.is_equal else verdict.blame


if __name__ == "__main__":
    run_fuzzer("tests.verify.simulate.mesh_fuzz", check_mesh, agree=check_agreement)
