"""Classes of numerics and memory settings against each other: ratios within one process, and the goals for them.

    python benchmarks/ratios.py                                   # a GPU: every model
    python benchmarks/ratios.py --models llama3_bench_1b --settings layer fast lean
    python benchmarks/ratios.py --device cpu                      # debug models, to try the script

Settings of a model run one after the other in one process, because machines of one kind differ by several percent. A
plain bf16 matmul is timed before each: where its rate falls, the machine slowed down, and the ratio says little.
`lean` is `fast` with fp32 master weights stored as bf16 weights and remainders, which needs no casts of weights, and
with what else saves memory at little cost; `lean_moments` also has moments in bf16.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from monograph.bench import BenchRow, plan_modes, run_modes
from monograph.config.leaves import replace_leaf
from monograph.recipes.catalog import load_recipe
from monograph.train.config import TrainerConfig

Changes = dict[str, object]
SHARED: Changes = {"training.global_batch_size": -1, "validator.interval": 0, "checkpoint.enabled": False}
MODELS: dict[str, Changes] = {
    "llama3_bench_1b": {},
    "deepseek_v3_bench_moe": {},
    "qwen3_1_7b": {"training.local_batch_size": 4},
    "llama3_8b": {"training.seq_len": 8192, "training.local_batch_size": 1},
}
"""Model -> what is changed in its recipe, in every setting."""
REMAINDERS: Changes = {"training.dtype": "bfloat16", "optimizer.store_param_remainders": True}
MOMENTS: Changes = {"optimizer.state_dtype": "bfloat16"}
SETTINGS: dict[str, tuple[str, Changes]] = {
    "layer": ("layer", {}),
    "exact": ("exact", {}),
    "fast": ("fast", {}),
    "lean": ("fast", REMAINDERS),
    "lean_moments": ("fast", {**REMAINDERS, **MOMENTS}),
    "float8": ("float8", {}),
    "float8_lean": ("float8", REMAINDERS),
}
"""Setting -> a mode of `monograph bench`, and what is changed besides."""
SMALL_LOSS: Changes = {"model.loss.chunk_tokens": 4096}
SMALLER_LOSS: Changes = {"model.loss.chunk_tokens": 2048}


def save_at_most(gib: float) -> Changes:
    """Recompute what costs least until so much is saved for backward."""
    return {"activation_checkpoint.mode": "budget", "activation_checkpoint.budget_gib": gib}


BUDGETS: dict[tuple[str, str], Changes] = {
    ("llama3_bench_1b", "lean"): {**SMALLER_LOSS, **save_at_most(11.8)},
    ("llama3_8b", "lean"): save_at_most(19.5),
    ("llama3_8b", "lean_moments"): save_at_most(21.5),
    ("deepseek_v3_bench_moe", "lean"): SMALLER_LOSS,
    ("deepseek_v3_bench_moe", "lean_moments"): SMALL_LOSS,
}
"""(model, setting) -> what is changed besides, to stay within a goal for memory."""


@dataclass(frozen=True)
class Goal:
    """A ratio to reach, or memory to stay within."""

    model: str
    setting: str
    over: str
    ratio: float
    gib: float | None = None


GOALS = [
    Goal("llama3_bench_1b", "lean", "layer", 1.11, 27.0),
    Goal("deepseek_v3_bench_moe", "lean", "layer", 1.28, 48.5),
    Goal("deepseek_v3_bench_moe", "lean_moments", "layer", 1.28, 38.0),
    Goal("qwen3_1_7b", "lean", "layer", 1.08),
    Goal("llama3_8b", "lean", "fast", 1.0, 112.0),
    Goal("llama3_8b", "lean_moments", "fast", 1.0, 84.0),
    Goal("llama3_bench_1b", "float8", "fast", 1.22),
    Goal("deepseek_v3_bench_moe", "float8", "fast", 1.12),
    Goal("llama3_8b", "float8", "fast", 1.35),
]


def plan_setting(model: str, setting: str, device: str, more: Changes) -> TrainerConfig:
    """The configuration that is measured."""
    mode, changes = SETTINGS[setting]
    config = load_recipe(model)
    shared = {**SHARED, "debug.device": device, **MODELS.get(model, {}), **changes}
    if device == "cpu":
        shared["training.compute_dtype"] = "bfloat16"
    for path, value in (shared | BUDGETS.get((model, setting), {}) | more).items():
        config = replace_leaf(config, path, value)
    return plan_modes(config, [mode])[mode]


def time_matmul(device: str, seconds: float = 0.5) -> float:
    """TFLOP/s of a matmul that every model of ours has much of."""
    rows, inner, columns = (16384, 2048, 8192) if device == "cuda" else (256, 256, 256)
    left = torch.randn(rows, inner, device=device, dtype=torch.bfloat16)
    right = torch.randn(inner, columns, device=device, dtype=torch.bfloat16)
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(20):
            left @ right
        if device == "cuda":
            torch.cuda.synchronize()
        count += 20
    return count * 2 * rows * inner * columns / (time.perf_counter() - start) / 1e12


def measure(model: str, given: argparse.Namespace) -> dict[str, tuple[BenchRow, float]]:
    """Setting -> its row, and the rate of the matmul before it."""
    found = {}
    for setting in given.settings:
        config = plan_setting(model, setting, given.device, dict(given.change))
        rate = time_matmul(given.device)
        folder = Path(given.profile) / model / setting if given.profile else None
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        try:
            (row,) = run_modes({setting: config}, steps=given.steps, warmup=given.warmup, profile=folder)
        except torch.OutOfMemoryError as error:
            print(f"{model} {setting}: out of memory: {str(error).splitlines()[0]:.100}", flush=True)
            torch.cuda.empty_cache()
            continue
        found[setting] = row, rate
        first = next(iter(found.values()))[0]
        gib = "-" if row.peak_gib is None else f"{row.peak_gib:.2f}"
        print(
            f"{model:22} {setting:13}{row.tokens_per_second:10,.0f} tokens/s {row.ms:8.1f} ms"
            f" {row.tokens_per_second / first.tokens_per_second:6.3f} x {first.mode:6} {gib:>7} GiB"
            f" {'recorded' if row.is_recorded else '':9} loss {row.loss:.4f}, matmul {rate:.1f} TFLOP/s",
            flush=True,
        )
    return found


def judge(found: dict[str, dict[str, tuple[BenchRow, float]]]) -> list[str]:
    """Every goal whose two settings were measured, and by how much it is met or missed."""
    lines = []
    for goal in GOALS:
        rows = found.get(goal.model, {})
        if goal.setting not in rows or goal.over not in rows:
            continue
        row, over = rows[goal.setting][0], rows[goal.over][0]
        ratio = row.tokens_per_second / over.tokens_per_second
        lines.append(
            f"{'met' if ratio >= goal.ratio else 'MISSED'}: {goal.model} {goal.setting} is {ratio:.3f} times as fast as"
            f" {goal.over}, goal {goal.ratio}"
        )
        if goal.gib is not None and row.peak_gib is not None:
            word = "met" if row.peak_gib <= goal.gib else "MISSED"
            lines.append(f"{word}: {goal.model} {goal.setting} needs {row.peak_gib:.2f} GiB, goal {goal.gib}")
    return lines


def read_arguments() -> argparse.Namespace:
    """What the command line asks for; a CPU gets debug models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--profile", default="", help="folder for a profile of every setting")
    parser.add_argument("--out", type=Path, help="file for all numbers, as JSON")
    parser.add_argument("--change", nargs="*", type=read_change, default=[], help="PATH=VALUE, in every setting")
    given = parser.parse_args()
    if not given.models:
        given.models = ["llama3_debugmodel"] if given.device == "cpu" else list(MODELS)
    return given


def read_change(text: str) -> tuple[str, object]:
    """A field and its value, which is JSON, or else a word."""
    path, _, value = text.partition("=")
    try:
        return path, json.loads(value)
    except json.JSONDecodeError:
        return path, value


def show(found: dict[str, dict[str, tuple[BenchRow, float]]]) -> Sequence[dict[str, object]]:
    """All numbers, for a file."""
    return [
        {"model": model, "setting": setting, "matmul_tflops": rate, **asdict(replace(row, profile=None))}
        for model, rows in found.items()
        for setting, (row, rate) in rows.items()
    ]


def main() -> None:
    given = read_arguments()
    found = {model: measure(model, given) for model in given.models}
    print("", *judge(found), sep="\n")
    if given.out:
        given.out.write_text(json.dumps(show(found), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
