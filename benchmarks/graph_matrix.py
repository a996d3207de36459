"""Graph mode against eager mode, bit for bit over 20 updates: every debug model, mesh, memory policy and pass.

    python benchmarks/graph_matrix.py [--meshes 1 dp2 ...] [--recipes ...] [--variants default policies passes]

What `monograph compare "R" "R --compile.mode graph ..."` says and more: not only losses and gradient norms but every
gradient, buffer and updated weight of every update, on all ranks. The ranks live on from entry to entry and the eager
run is made once for all variants of a model on a mesh. Sequences are short; everything else is as in the recipes.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from monograph.config.configurable import check_config
from monograph.config.leaves import replace_leaf
from monograph.parallel.groups import joined_groups
from monograph.passes.order import ORDER
from monograph.recipes.catalog import load_recipe
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.execute.updates import CPU, differences, make_updates
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
    "all": {"passes.choose_saved.policy": "all"},
    "min_cut": {"passes.choose_saved.policy": "min_cut"},
    "full": {"passes.choose_saved.policy": "full"},
    "budget": {"passes.choose_saved.policy": "budget", "passes.choose_saved.budget_gib": 0.02},
    "offload": {"passes.offload_saved.budget_gib": 1.0},
    "split in two": {"compile.partition": "min_cut"},
}
PASSES: dict[str, Changes] = {
    f"no {name}": {"passes.off": (name,)} for name in ORDER if "compile" not in name and "mark" not in name
}
VARIANTS = {"default": DEFAULT, "policies": POLICIES, "passes": PASSES}


def make_config(recipe: str, mesh: str, updates: int, changes: Changes) -> TrainerConfig:
    """The recipe on a mesh, with short sequences."""
    fixed: Changes = {
        "training.steps": updates,
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


def compare(recipe: str, mesh: str, updates: int, variants: dict[str, Changes]) -> dict[str, tuple[list[str], float]]:
    """On one rank: for each variant, the tensors that differ from eager's, and the seconds it took."""
    free: tuple[tuple[int, ...], ...] = ((),) * updates
    eager = make_config(recipe, mesh, updates, {})
    with joined_groups(plan_run_mesh(eager, int(os.environ.get("WORLD_SIZE", "1"))), CPU) as groups:
        wanted = make_updates(eager, groups, routings=free)
        found = {}
        for name, changes in variants.items():
            start = time.perf_counter()
            config = make_config(recipe, mesh, updates, {"compile.mode": "graph", **changes})
            made = make_updates(config, groups, routings=free)
            assert len(made) == updates
            found[name] = differences(wanted, made), time.perf_counter() - start
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run all entries and print the table; 1 when anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=RECIPES, choices=RECIPES)
    parser.add_argument("--meshes", nargs="+", default=list(MESHES), choices=list(MESHES))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--updates", type=int, default=20)
    options = parser.parse_args(words)
    rows = failed = 0
    print("| model | mesh | variant | against eager | seconds |\n|---|---|---|---|---|", flush=True)
    for mesh in options.meshes:
        for recipe in options.recipes:
            if mesh == "ep2" and recipe not in WITH_EXPERTS:
                continue
            for kind in options.variants:
                given = (recipe, mesh, options.updates, VARIANTS[kind])
                answers = pool.run(MESHES[mesh][0], compare, *given, timeout_seconds=3600.0)
                for name, (_, seconds) in answers[0].items():
                    different = sorted({tensor for answer in answers for tensor in answer[name][0]})
                    verdict = f"**{len(different)} differ, first {different[0]}**" if different else "equal"
                    rows, failed = rows + 1, failed + bool(different)
                    print(f"| {recipe} | {mesh} | {name} | {verdict} | {seconds:.0f} |", flush=True)
    print(f"\n{rows - failed} of {rows} are equal, {options.updates} updates each.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
