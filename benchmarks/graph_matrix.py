"""Graph mode against eager mode, bit for bit over 20 steps: every debug model, mesh, memory policy and pass.

    python benchmarks/graph_matrix.py [--meshes 1 dp2 ...] [--variants default policies passes] [--out FILE]

What `monograph compare "R" "R --compile.mode graph ..."` says, with the eager run made once for all variants of a model
on a mesh. Sequences are short; everything else is as in the recipes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from monograph.passes.order import ORDER

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
DEFAULT: dict[str, list[str]] = {"default": []}
POLICIES: dict[str, list[str]] = {
    "all": ["--passes.choose_saved.policy", "all"],
    "min_cut": ["--passes.choose_saved.policy", "min_cut"],
    "full": ["--passes.choose_saved.policy", "full"],
    "budget": ["--passes.choose_saved.policy", "budget", "--passes.choose_saved.budget_gib", "0.02"],
    "offload": ["--passes.offload_saved.budget_gib", "1"],
    "split in two": ["--compile.partition", "min_cut"],
}
PASSES = {f"no {name}": ["--passes.off", name] for name in ORDER if "compile" not in name and "mark" not in name}
VARIANTS = {"default": DEFAULT, "policies": POLICIES, "passes": PASSES}
FIXED = (
    *("--training.steps", "20", "--training.seq_len", "64", "--training.local_batch_size", "1"),
    *("--parallelism.fsdp", "graph", "--checkpoint.enabled", "false", "--validator.interval", "0"),
    *("--metrics.progress", "off"),
)


def train(recipe: str, mesh: str, words: Sequence[str], folder: Path) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step; an empty list when the run failed."""
    ranks, degrees = MESHES[mesh]
    command = [sys.executable, "-m", "monograph", "train", recipe, *FIXED, "--job.dump_folder", str(folder), *words]
    if ranks > 1:
        command += ["--ranks", str(ranks)]
    for name, degree in degrees.items():
        if name != "expert_parallel" or recipe in WITH_EXPERTS:
            command += [f"--parallelism.{name}_degree", str(degree)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return []
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return [(record["loss"], record["grad_norm"]) for record in records if "loss" in record]


def judge(eager: list[tuple[float, float]], graph: list[tuple[float, float]]) -> str:
    """Equal, or the first step that is not."""
    if not graph or not eager:
        return "**failed**"
    if len(eager) != len(graph):
        return f"**{len(eager)} and {len(graph)} steps**"
    for step, (one, other) in enumerate(zip(eager, graph, strict=True), 1):
        if one != other:
            return f"**step {step}: {one} and {other}**"
    return f"equal, {len(eager)} steps"


def main() -> None:
    """Run all entries and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=RECIPES, choices=RECIPES)
    parser.add_argument("--meshes", nargs="+", default=list(MESHES), choices=list(MESHES))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    variants = {name: words for kind in options.variants for name, words in VARIANTS[kind].items()}
    lines = ["| model | mesh | variant | against eager | seconds |", "|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    for mesh in options.meshes:
        for recipe in options.recipes:
            if mesh == "ep2" and recipe not in WITH_EXPERTS:
                continue
            with tempfile.TemporaryDirectory(prefix="graph-matrix-") as folder:
                eager = train(recipe, mesh, [], Path(folder) / "eager")
                for place, (name, words) in enumerate(variants.items()):
                    start = time.time()
                    graph = train(recipe, mesh, ["--compile.mode", "graph", *words], Path(folder) / str(place))
                    cells = (recipe, mesh, name, judge(eager, graph), f"{time.time() - start:.0f}")
                    lines.append(f"| {' | '.join(cells)} |")
                    print(lines[-1], flush=True)
    bad = sum("**" in line for line in lines)
    lines.append(f"\n{len(lines) - 2 - bad} of {len(lines) - 2} are equal.")
    print(lines[-1])
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
