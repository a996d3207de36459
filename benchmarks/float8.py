"""compile.numerics float8 on one device: its kernels against their references, times and steps.

    python benchmarks/float8.py                                    # a GPU: kernels, times, steps of three models
    python benchmarks/float8.py --only steps --recipes llama3_bench_1b --profile traces
    python benchmarks/float8.py --device cpu                       # the same with debug models, to try the script

Parts: `kernels` compares every float8 op with its reference, also on large matrices, and what is fused with the same
kernels one by one; `times` has casts and what is fused with them, with GB/s, and matmuls of 1B and 8B models; `steps`
the modes layer, fast and float8, one after the other in this process. The exit code is 1 where a kernel is not its
reference. Losses are compared by benchmarks/float8_losses.py.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.float8_times import E4M3, LAYERS, MATMULS, show_times
from monograph.bench import BenchRow, plan_modes, run_modes
from monograph.config.leaves import replace_leaf
from monograph.kernels.catalog import CUSTOM_OPS
from monograph.kernels.check_op import check_op
from monograph.kernels.float8 import FLOAT8_CAST, FLOAT8_CAST_BOTH, reference_float8_cast
from monograph.kernels.float8_amax import FLOAT8_CAST_AMAX, FLOAT8_CAST_TRANSPOSED
from monograph.kernels.float8_norm import FLOAT8_ADD_NORM, FLOAT8_NORM
from monograph.kernels.float8_swiglu import FLOAT8_SWIGLU, FLOAT8_SWIGLU_BACKWARD
from monograph.kernels.norm import ADD_NORM, NORM_BACKWARD_RECOMPUTE
from monograph.kernels.swiglu import SWIGLU, SWIGLU_BACKWARD_PACKED_RECOMPUTE
from monograph.recipes.catalog import load_recipe
from monograph.train.config import TrainerConfig

PARTS = ("kernels", "times", "steps")
RESULTS = [
    f"{op} {part}"
    for op in ("float8_cast_both", "float8_cast")
    for part in ("numbers", "scales", "transposed numbers", "transposed scales")
]
"""What is compared with the reference, in the order in which it is computed."""
RECIPES = ("llama3_bench_1b", "deepseek_v3_bench_moe", "llama3_8b")
CHANGES: dict[str, dict[str, object]] = {"llama3_8b": {"training.seq_len": 8192, "training.local_batch_size": 1}}
SHARED: dict[str, object] = {"training.global_batch_size": -1, "validator.interval": 0, "checkpoint.enabled": False}


def plan_run(recipe: str, device: str, changes: dict[str, object]) -> TrainerConfig:
    """The recipe with one micro-batch a step; on a CPU in bf16, which debug models there are not."""
    config = load_recipe(recipe)
    shared = {**SHARED, "debug.device": device, **CHANGES.get(recipe, {}), **changes}
    if device == "cpu":
        shared["training.compute_dtype"] = "bfloat16"
    for path, value in shared.items():
        config = replace_leaf(config, path, value)
    return config


def check_kernels(device: str, shrink: int) -> list[str]:
    """What is wrong with float8 ops on this device."""
    problems = []
    for op in [each for each in CUSTOM_OPS.values() if each.name.startswith("float8")]:
        try:
            skipped = check_op(op)
        except Exception as error:  # the other ops are worth knowing
            problems.append(f"{op.name}: {error}")
        else:
            print(f"{op.name}: {'not run: ' + skipped['kernel'] if 'kernel' in skipped else 'kernel equals reference'}")
    for name, (tokens, inputs, _) in MATMULS.items():
        x = torch.randn(tokens // shrink, inputs // shrink, device=device).bfloat16()
        for by_row in (True, False):
            found = FLOAT8_CAST_BOTH(x, E4M3, by_row)
            single = [*FLOAT8_CAST(x, E4M3, by_row, False), *FLOAT8_CAST(x, E4M3, by_row, True)]
            wanted = [*reference_float8_cast(x, E4M3, by_row, False), *reference_float8_cast(x, E4M3, by_row, True)]
            pairs = [*zip(found, wanted, strict=True), *zip(single, wanted, strict=True)]
            for label, (one, other) in zip(RESULTS, pairs, strict=True):
                if difference := describe_difference(one, other):
                    problems.append(f"{name}, {'rowwise' if by_row else 'tensorwise'}, {label}: {difference}")
    return problems + check_fused(device, shrink)


def check_fused(device: str, shrink: int) -> list[str]:
    """Where ops that write float8 differ from the same kernels one by one, on this device."""
    problems = []
    for name, (tokens, dim, hidden) in LAYERS.items():
        sizes = tokens // shrink, hidden // shrink
        weight = torch.randn(dim // shrink, device=device).bfloat16()
        two = torch.randn(2, tokens // shrink, dim // shrink, device=device).bfloat16().unbind()
        total, out, rstd = ADD_NORM(*two, weight, 1e-5)
        cast = FLOAT8_CAST_AMAX(out, E4M3)
        transposed = FLOAT8_CAST_TRANSPOSED(out, cast[2], E4M3)
        x, up = torch.randn(sizes[0], 2 * sizes[1], device=device).bfloat16().chunk(2, -1)
        grad = torch.randn(sizes, device=device).bfloat16()
        both, gate = SWIGLU_BACKWARD_PACKED_RECOMPUTE(grad, x, up)
        casts = [*FLOAT8_CAST_BOTH(both, E4M3, True), *FLOAT8_CAST(gate, E4M3, True, True)]
        pairs = {
            "float8_add_norm": (FLOAT8_ADD_NORM(*two, weight, 1e-5), (total, *cast, rstd)),
            "float8_norm": (FLOAT8_NORM(total, weight, 1e-5), (*cast, rstd)),
            "norm_backward_recompute": (NORM_BACKWARD_RECOMPUTE(two[0], total, weight, rstd, None)[2:], (out,)),
            "float8_cast_amax": ((*cast[:2], *transposed), FLOAT8_CAST_BOTH(out, E4M3, True)),
            "float8_swiglu": (FLOAT8_SWIGLU(x, up), FLOAT8_CAST(SWIGLU(x, up), E4M3, True, False)),
            "float8_swiglu_backward": (FLOAT8_SWIGLU_BACKWARD(grad, x, up), casts),
        }
        for op, (found, wanted) in pairs.items():
            for index, (one, other) in enumerate(zip(found, wanted, strict=True)):
                if difference := describe_difference(one, other):
                    problems.append(f"{name}, {op}, result {index}: {difference}")
    return problems


def describe_difference(found: Tensor, wanted: Tensor) -> str:
    """How many elements differ in their bits, by how many steps of their dtype, and the first of them; or nothing."""
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[found.itemsize]
    steps = (found.contiguous().view(whole).long() - wanted.contiguous().view(whole).long()).abs()
    count = int(steps.count_nonzero())
    if not count:
        return ""
    first = steps.flatten().nonzero()[0].item()
    index = [int(each) for each in torch.unravel_index(torch.tensor(first), found.shape)]
    one, other = (each.flatten()[first].float().item() for each in (found, wanted))
    share = f"{count:,} of {found.numel():,} elements differ, by {int(steps.max())} steps of the dtype at most"
    return f"{share}; first at {index}: {one:.9g}, reference {other:.9g}"


def measure(recipe: str, given: argparse.Namespace) -> list[BenchRow]:
    """A row for every mode that fits the device."""
    rows: list[BenchRow] = []
    for mode in given.modes:
        name, _, scaling = mode.partition(":")
        config = plan_run(recipe, given.device, {})
        if scaling:
            config = replace_leaf(config, "passes.quantize_matmuls.recipe", scaling)
        if given.device == "cuda" and name in ("fast", "float8"):
            config = replace_leaf(config, "compile.cuda_graph", "require")
        if given.device == "cpu":
            config = replace_leaf(config, "training.seq_len", 64)
        folder = Path(given.profile, recipe, mode.replace(":", "_")) if given.profile else None
        try:
            plan = plan_modes(config, [name])
            rows += [replace(row, mode=mode) for row in _run(plan, given, folder)]
        except torch.OutOfMemoryError as error:
            print(f"{recipe} {mode}: out of memory: {str(error).splitlines()[0]:.100}")
            torch.cuda.empty_cache()
    return rows


def _run(plan: dict[str, TrainerConfig], given: argparse.Namespace, folder: Path | None) -> list[BenchRow]:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    return run_modes(plan, steps=given.bench_steps, warmup=given.warmup, profile=folder)


def show_steps(recipe: str, rows: Sequence[BenchRow]) -> None:
    """The table of one recipe."""
    names = ("tokens/s", 12), ("x fast", 9), ("ms", 10), ("MFU", 8), ("peak GiB", 10), ("recorded", 10), ("loss", 10)
    print("", recipe, "mode" + " " * 20 + "".join(name.rjust(width) for name, width in names), sep="\n")
    fast = next((row for row in rows if row.mode == "fast"), rows[0] if rows else None)
    for row in rows:
        mfu = "-" if row.mfu is None else f"{100 * row.mfu:.1f} %"
        peak = "-" if row.peak_gib is None else f"{row.peak_gib:.1f}"
        ratio = row.tokens_per_second / fast.tokens_per_second if fast else 1.0
        print(
            f"{row.mode:24}{row.tokens_per_second:12,.0f}{ratio:9.3f}{row.ms:10.1f}{mfu:>8}{peak:>10}"
            f"{'yes' if row.is_recorded else 'no':>10}{row.loss:10.4f}"
        )
    for row in rows:
        print(f"{row.mode}: {row.numerics}")
        if row.profile is not None:
            print(row.profile)


def read_arguments() -> argparse.Namespace:
    """What the command line asks for; a CPU gets debug models and small matrices."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=("kernels", "times", "steps"))
    parser.add_argument("--recipes", nargs="*", default=None)
    parser.add_argument("--modes", nargs="*", default=["layer", "fast", "float8"], help="float8:tensorwise is one too")
    parser.add_argument("--bench-steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--profile", default="", help="folder for a profile of every mode")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each time of a kernel")
    given = parser.parse_args()
    given.recipes = given.recipes or (RECIPES if given.device == "cuda" else ["llama3_debugmodel"])
    return given


def main() -> int:
    given = read_arguments()
    shrink = 1 if given.device == "cuda" else 64
    problems = check_kernels(given.device, shrink) if "kernels" in given.only else []
    print("\n".join(problems), flush=True)
    if "times" in given.only:
        show_times(given.device, shrink, given.seconds)
    for recipe in given.recipes:
        if "steps" in given.only:
            show_steps(recipe, measure(recipe, given))
    print("\n".join(["", *problems]) if problems else "\nas promised")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
