"""Graph mode against eager mode, bit for bit over 20 updates: every debug model, mesh, memory policy and pass.

    python benchmarks/graph_matrix.py [--meshes 1 dp2 ...] [--recipes ...] [--variants default policies passes]

What `monograph compare "R --compile.mode eager" "R ..."` says and more: loss and gradient norm of every update, and at
the end every weight and buffer, on all ranks. The ranks live on from entry to entry and the eager run is made once for
all variants of a model on a mesh. A pass that the default pipeline leaves out there (it has nothing to do) is not
switched off once more. Sequences are short; everything else is as in the recipes, but for `--layers`.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from monograph.config.configurable import check_config
from monograph.config.leaves import replace_leaf
from monograph.execute.graph_step import GraphStep
from monograph.parallel.groups import Groups, joined_groups
from monograph.passes.order import ORDER
from monograph.recipes.catalog import load_recipe
from monograph.run import build_step
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from monograph.train.update import add_gradients, apply_update
from tests.execute.updates import CPU, buffers_of, digest, read_batches
from tests.kit.ranks import pool

RECIPES = ("llama3_debugmodel", "qwen3_debugmodel", "qwen3_debugmodel_moe", "deepseek_v3_debugmodel")
WITH_EXPERTS = RECIPES[2:]
MESHES: dict[str, tuple[int, dict[str, int]]] = {
    "1": (1, {}),
    "dp2": (2, {}),
    "tp2": (2, {"tensor_parallel": 2}),
    "ep2": (2, {"expert_parallel": 2}),
    "dp2 tp2 ep2": (4, {"tensor_parallel": 2, "expert_parallel": 2}),
    "dp4 tp2 ep4": (8, {"tensor_parallel": 2, "expert_parallel": 4}),
}
Changes = dict[str, Any]
DEFAULT: dict[str, Changes] = {"default": {}}
POLICIES: dict[str, Changes] = {
    "all": {"activation_checkpoint.mode": "none"},
    "min_cut": {"activation_checkpoint.mode": "min_cut"},
    "full": {"activation_checkpoint.mode": "full"},
    "budget": {"activation_checkpoint.mode": "budget", "activation_checkpoint.budget_gib": 0.02},
    "offload": {"passes.offload_activations.budget_gib": 1.0},
}
PASSES: dict[str, Changes] = {
    f"no {name}": {"passes.off": (name,)} for name in ORDER if "compile" not in name and "mark" not in name
}
VARIANTS = {"default": DEFAULT, "policies": POLICIES, "passes": PASSES}


@dataclass(frozen=True)
class Size:
    """How long and how deep."""

    updates: int
    layers: int
    """0: as many as the recipe has."""


def make_config(recipe: str, mesh: str, size: Size, changes: Changes) -> TrainerConfig:
    """The recipe on a mesh, with short sequences."""
    fixed: Changes = {
        "training.steps": size.updates,
        **({"model.n_layers": size.layers} if size.layers else {}),
        "training.seq_len": 64,
        "training.local_batch_size": 1,
        "parallelism.fsdp": "graph",
        "debug.device": "cpu",
        "debug.log_level": "warning",
    }
    for name, degree in MESHES[mesh][1].items():
        if name != "expert_parallel" or recipe in WITH_EXPERTS:
            fixed[f"parallelism.{name}_degree"] = degree
    config = load_recipe(recipe)
    for path, value in {**fixed, **changes}.items():
        config = replace_leaf(config, path, value)
    check_config(config)
    return config


Numbers = dict[str, Any]
"""By name: losses and norms as they are, tensors as digests."""


def run_updates(config: TrainerConfig, groups: Groups) -> tuple[Numbers, set[str]]:
    """What training leaves, and the names of the passes that had something to do."""
    step = build_step(config, groups)
    optimizer = config.optimizer.build(parameters=step.parameters)
    found: Numbers = {}
    for number, batch in enumerate(read_batches(config, step, config.training.steps), 1):
        loss = add_gradients(step, [batch])
        done = apply_update(step, optimizer, loss=loss, lr=0.001, max_norm=1.0)
        found |= {f"{number} loss": loss.item(), f"{number} norm": done.grad_norm.item()}
    found |= digest({name: value for name, value in step.parameters.items()} | buffers_of(step))
    records = step.records if isinstance(step, GraphStep) else []
    step.close()
    return found, {record.name for record in records if record.status == "ran"}


def compare(recipe: str, mesh: str, size: Size, variants: dict[str, Changes]) -> dict[str, tuple[list[str], float]]:
    """On one rank: for each variant, the numbers that differ from eager's, and the seconds it took."""
    eager = make_config(recipe, mesh, size, {"compile.mode": "eager"})
    with joined_groups(plan_run_mesh(eager, int(os.environ.get("WORLD_SIZE", "1"))), CPU) as groups:
        wanted, _ = run_updates(eager, groups)
        found: dict[str, tuple[list[str], float]] = {}
        busy: set[str] = set()
        for name, changes in {**DEFAULT, **variants}.items():
            if name in PASSES and name.removeprefix("no ") not in busy:
                continue
            start = time.perf_counter()
            made, ran = run_updates(make_config(recipe, mesh, size, {"compile.mode": "graph", **changes}), groups)
            busy |= ran if name in DEFAULT else set()
            assert made.keys() == wanted.keys()
            different = [key for key, value in wanted.items() if made[key] != value]
            found[name] = different, time.perf_counter() - start
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run all entries and print the table; 1 when anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=RECIPES, choices=RECIPES)
    parser.add_argument("--meshes", nargs="+", default=list(MESHES), choices=list(MESHES))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--layers", type=int, default=0, help="blocks; 0: as many as the recipe has")
    options = parser.parse_args(words)
    rows = failed = 0
    print("| model | mesh | variant | against eager | seconds |\n|---|---|---|---|---|", flush=True)
    for mesh in options.meshes:
        for recipe in options.recipes:
            if mesh == "ep2" and recipe not in WITH_EXPERTS:
                continue
            chosen = {name: changes for kind in options.variants for name, changes in VARIANTS[kind].items()}
            given = (recipe, mesh, Size(options.updates, options.layers), chosen)
            answers = pool.run(MESHES[mesh][0], compare, *given, timeout_seconds=3600.0)
            for name, (_, seconds) in answers[0].items():
                different = list(dict.fromkeys(key for answer in answers for key in answer[name][0]))
                verdict = f"**{len(different)} differ, first {different[0]}**" if different else "equal"
                rows, failed = rows + 1, failed + bool(different)
                print(f"| {recipe} | {mesh} | {name} | {verdict} | {seconds:.0f} |", flush=True)
    print(f"\n{rows - failed} of {rows} are equal, {options.updates} updates each.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
