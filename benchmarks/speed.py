"""Speed on one GPU: the numbers of the README's table and more, against what we mean to reach.

Steps, memory, cold first steps and first steps from an artifact:

    python benchmarks/speed.py --out results.json
    python benchmarks/speed.py --recipes llama3_bench_1b --only fast exact --times 3

Every measurement is a `monograph bench` in a process of its own whose compilers have empty caches, as often as
`--times` says; a first, tiny one reads libraries from the disk. Prints each, and which targets were met.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_check import FAST

RECIPES: dict[str, list[str]] = {
    "llama3_bench_1b": [],
    "deepseek_v3_bench_moe": [],
}
"""What is measured, with its flags."""
KINDS = {"fast": "fast", "exact": "exact", "layer": "fast,layer", "artifact": "fast"}
"""Kind of measurement -> the modes of one process."""
_SHOWN_LINES = 25


@dataclass(frozen=True)
class Target:
    """A number that a measurement should reach, or stay below."""

    recipe: str
    kind: str
    field: str
    value: float
    is_floor: bool

    def judge(self, row: dict[str, Any]) -> bool:
        """Whether this row is good enough."""
        return row[self.field] >= self.value if self.is_floor else row[self.field] <= self.value


def _targets(recipe: str, fast: float, exact: float, gib: float, cold: float) -> list[Target]:
    return [
        Target(recipe, "fast", "tokens_per_second", fast, True),
        Target(recipe, "fast", "peak_gib", gib, False),
        Target(recipe, "fast", "first_step_seconds", cold, False),
        Target(recipe, "exact", "tokens_per_second", exact, True),
        Target(recipe, "artifact", "first_step_seconds", 3.0, False),
    ]


TARGETS = [
    *_targets("llama3_bench_1b", 67_000, 55_000, 35.0, 10.0),
    *_targets("deepseek_v3_bench_moe", 85_000, 56_000, 55.0, 18.0),
]


def run(words: Sequence[str]) -> None:
    """One `monograph` command in a process of its own, with empty caches; it must succeed."""
    with tempfile.TemporaryDirectory(prefix="monograph-speed-") as folder:
        caches = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        command = [sys.executable, "-m", "monograph", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | caches)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-_SHOWN_LINES:])
        raise SystemExit(f"monograph {' '.join(words)}\nended with exit code {done.returncode}:\n{tail}")


def measure(recipe: str, kind: str, flags: Sequence[str], steps: int) -> list[dict[str, Any]]:
    """The rows of one `bench`, each with its recipe and kind."""
    with tempfile.TemporaryDirectory(prefix="monograph-speed-") as folder:
        out = Path(folder) / "bench.json"
        run(["bench", recipe, "--modes", KINDS[kind], "--steps", str(steps), "--out", str(out), *flags])
        found = json.loads(out.read_text(encoding="utf-8"))
    said = {key: found[key] for key in ("date", "device", "versions", "command")}
    return [{"recipe": recipe, "kind": kind, **row, "said": said} for row in found["rows"]]


def measure_recipe(
    recipe: str, flags: Sequence[str], kinds: Sequence[str], *, times: int, steps: int
) -> list[dict[str, Any]]:
    """Every kind of measurement, `times` times."""
    rows = []
    with tempfile.TemporaryDirectory(prefix="monograph-speed-") as folder:
        more: list[str] = []
        if "artifact" in kinds:
            run(["precompile", recipe, "--out", f"{folder}/artifact", *flags, *FAST.split()])
            more = ["--compile.artifact", f"{folder}/artifact"]
        for _ in range(times):
            for kind in kinds:
                found = measure(recipe, kind, [*flags, *(more if kind == "artifact" else [])], steps)
                print(*map(describe, found), sep="\n", flush=True)
                rows += found
    return rows


def describe(row: dict[str, Any]) -> str:
    """One measurement on one line."""
    shares = " ".join(f"{name} {taken:.2f}" for name, taken in row["first_step_shares"].items() if taken >= 0.05)
    gib = f"{row['peak_gib']:.2f} GiB" if row["peak_gib"] is not None else "-"
    return (
        f"{row['recipe']} {row['kind']} ({row['mode']}): {row['tokens_per_second']:,.0f} tokens/s, {row['ms']:.1f} ms"
        f" +- {50 * row['spread']:.1f} %, {gib}, first step {row['first_step_seconds']:.2f} s ({shares}),"
        f" loss {row['loss']:.4f}"
    )


def judge(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Every target with all that was measured for it, and how far these lie apart."""
    lines = []
    for target in TARGETS:
        mine = [row for row in rows if (row["recipe"], row["kind"]) == (target.recipe, target.kind)]
        if not mine or mine[0][target.field] is None:
            continue
        values = [row[target.field] for row in mine]
        met = sum(target.judge(row) for row in mine)
        apart = 100 * (max(values) - min(values)) / min(values)
        shown = ", ".join(f"{value:,.2f}" for value in values)
        word = "at least" if target.is_floor else "at most"
        lines.append(
            f"{'met' if met == len(mine) else 'MISSED'} {met} of {len(mine)}: {target.recipe} {target.kind}"
            f" {target.field} {word} {target.value:,}: {shown} ({apart:.1f} % apart)"
        )
    return lines + compare_with_layers(rows)


def compare_with_layers(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Graph mode against layer mode in the same process."""
    both = [row for row in rows if row["kind"] == "layer"]
    return [
        f"{graph['recipe']}: graph {graph['tokens_per_second'] / layer['tokens_per_second']:.3f}x as fast as layer"
        + (f" with {graph['peak_gib'] / layer['peak_gib']:.3f}x the memory" if graph["peak_gib"] else "")
        for graph, layer in zip(both[::2], both[1::2], strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="+", default=list(RECIPES))
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = ["--debug.device", asked.device]
    start = time.perf_counter()
    run(["bench", "llama3_debugmodel", "--modes", "fast", "--steps", "2", *device])
    rows = []
    for recipe in asked.recipes:
        flags = [*device, *RECIPES.get(recipe, [])]
        rows += measure_recipe(recipe, flags, asked.only, times=asked.times, steps=asked.steps)
    print(*judge(rows), sep="\n")
    print(f"{time.perf_counter() - start:.0f} s")
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
