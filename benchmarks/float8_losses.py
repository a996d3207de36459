"""Losses of bf16 exact, bf16 fast and float8 over the same batches, as a table and a plot.

    python benchmarks/float8_losses.py --recipes llama3_bench_1b --common 100 --steps 300   # a GPU
    python benchmarks/float8_losses.py --device cpu --common 20 --steps 40                  # a debug model

All three start from one checkpoint, which `--common` steps of bf16 fast wrote: from random weights runs part by chance
while the loss falls fast, two forms of bf16 as well (`--common 0` shows it). They run at the same time, each in a
process of its own. The exit code is 1 where a 20-step mean of float8 differs from fast by more than 0.5 %.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.float8 import plan_run
from monograph.run import train
from monograph.train.records import read_records

NUMERICS = ("exact", "fast", "float8")
COLORS = ("#3a8f4d", "#1f5fa8", "#d05a1f")
MEAN = 20
"""Steps of a mean."""
ALLOWED = 0.005
"""Between means of float8 and of bf16, relative."""


def learn(recipe: str, numerics: str, folder: Path, steps: int, given: argparse.Namespace) -> None:
    """Train in a folder: the common steps, or what follows their checkpoint."""
    is_common = steps == given.common
    common = folder.with_name("common") / "checkpoints"
    changes: dict[str, object] = {
        "training.steps": steps,
        "compile.mode": "graph",
        "compile.numerics": numerics,
        "job.dump_folder": str(folder),
        "optimizer.lr": given.lr,
        "lr_scheduler.warmup_steps": min(20, given.common or 20),
        "lr_scheduler.decay": "constant",
        "lr_scheduler.on_extend": "hold",
        "checkpoint.enabled": True,
        "checkpoint.interval": steps if is_common else 1_000_000,
        "checkpoint.load": "auto" if is_common or not given.common else str(common),
        "checkpoint.save_last": is_common,
    }
    if given.batch:
        changes["training.local_batch_size"] = given.batch
    if given.device == "cpu":
        changes["training.seq_len"] = 128
    train(plan_run(recipe, given.device, changes))


def learn_apart(recipe: str, numerics: str, folder: Path, steps: int) -> subprocess.Popen[str]:
    """`learn` in a process of its own, with this one's arguments."""
    own = ["--recipes", recipe, "--numerics", numerics, "--folder", str(folder), "--until", str(steps)]
    command = [sys.executable, __file__, *sys.argv[1:], *own]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def wait_for(running: list[subprocess.Popen[str]]) -> None:
    """Until all have ended well."""
    for output, each in [(each.communicate()[0], each) for each in running]:
        if each.returncode:
            raise SystemExit(f"a run ended with exit code {each.returncode}:\n{output[-3000:]}")


def find_curves(recipe: str, given: argparse.Namespace) -> dict[str, list[float]]:
    """The losses of every kind of numerics, after the common steps."""
    with tempfile.TemporaryDirectory() as name:
        folders = {numerics: Path(name, numerics) for numerics in NUMERICS}
        if given.common:
            wait_for([learn_apart(recipe, "fast", Path(name, "common"), given.common)])
        last = given.common + given.steps
        wait_for([learn_apart(recipe, numerics, folder, last) for numerics, folder in folders.items()])
        records = {numerics: read_records(folder / "metrics.jsonl") for numerics, folder in folders.items()}
    curves = {numerics: [each["loss"] for each in found if "loss" in each] for numerics, found in records.items()}
    for numerics, losses in curves.items():
        if len(losses) != given.steps:
            raise SystemExit(f"{numerics}: {len(losses)} losses, expected {given.steps}")
    return curves


def compare_losses(recipe: str, given: argparse.Namespace) -> list[str]:
    """Means side by side, and where float8 parts from bf16; how far two forms of bf16 part says what is chance."""
    curves = find_curves(recipe, given)
    means = {
        name: [sum(losses[at : at + MEAN]) / MEAN for at in range(0, len(losses) - MEAN + 1, MEAN)]
        for name, losses in curves.items()
    }
    lines = ["| steps | bf16 exact | bf16 fast | of exact | float8 | of fast |", "|---|---|---|---|---|---|"]
    apart = []
    for index, (first, one, other) in enumerate(zip(*means.values(), strict=True)):
        steps = f"{given.common + index * MEAN + 1}..{given.common + (index + 1) * MEAN}"
        apart_by = f"{one:.4f} | {100 * (one / first - 1):+.3f} % | {other:.4f} | {100 * (other / one - 1):+.3f} %"
        lines.append(f"| {steps} | {first:.4f} | {apart_by} |")
        if (index or given.common) and abs(other / one - 1) > ALLOWED:
            apart.append(f"{recipe}: means of steps {steps} differ by {100 * (other / one - 1):+.3f} %")
    print("", recipe, *lines, sep="\n", flush=True)
    folder = Path(given.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"float8-losses-{recipe}.md").write_text("\n".join([f"# {recipe}", "", *lines, ""]))
    (folder / f"float8-losses-{recipe}.svg").write_text(draw(recipe, curves, given.common))
    return apart


def draw(title: str, curves: dict[str, list[float]], start: int) -> str:
    """Curves over their steps, as SVG."""
    width, height, edge = 720, 360, 48
    values = [value for curve in curves.values() for value in curve]
    low, high, count = min(values), max(values), max(len(curve) for curve in curves.values())
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">']
    parts.append(f'<rect width="{width}" height="{height}" fill="white"/><text x="{edge}" y="24">{title}</text>')
    for at, ((name, curve), color) in enumerate(zip(curves.items(), COLORS, strict=True)):
        points = " ".join(
            f"{edge + (width - 2 * edge) * step / max(1, count - 1):.1f},"
            f"{height - edge - (height - 2 * edge) * (value - low) / max(high - low, 1e-9):.1f}"
            for step, value in enumerate(curve)
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        parts.append(f'<text x="{width - 3 * edge}" y="{24 + 18 * at}" fill="{color}">{name}</text>')
    parts.append(f'<text x="4" y="{edge}" font-size="12">{high:.2f}</text>')
    parts.append(f'<text x="4" y="{height - edge}" font-size="12">{low:.2f}</text>')
    parts.append(f'<text x="{edge}" y="{height - edge + 18}" font-size="12">{start + 1}</text>')
    parts.append(f'<text x="{width - edge}" y="{height - edge + 18}" font-size="12">{start + count}</text></svg>')
    return "\n".join(parts) + "\n"


def read_arguments() -> argparse.Namespace:
    """What the command line asks for; a CPU gets a debug model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--recipes", nargs="*", default=None)
    parser.add_argument("--common", type=int, default=100, help="steps of bf16 fast before the curves part")
    parser.add_argument("--steps", type=int, default=300, help="of a curve")
    parser.add_argument("--lr", type=float, default=1e-5, help="constant after 20 steps; runs part by chance if large")
    parser.add_argument("--batch", type=int, default=0, help="sequences a step; 0 for the recipe's")
    parser.add_argument("--out", default="benchmarks/results", help="folder for tables and plots")
    for name in ("--numerics", "--folder"):
        parser.add_argument(name, default="", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    given.recipes = given.recipes or (["llama3_bench_1b"] if given.device == "cuda" else ["llama3_debugmodel"])
    return given


def main() -> int:
    given = read_arguments()
    if given.numerics:
        learn(given.recipes[0], given.numerics, Path(given.folder), given.until, given)
        return 0
    problems = [problem for recipe in given.recipes for problem in compare_losses(recipe, given)]
    print("\n".join(["", *problems]) if problems else "\nas promised")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
