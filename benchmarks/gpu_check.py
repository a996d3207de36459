"""Everything that CI cannot check because it has no GPU, in one command: training, resume, verify, compile, ranks.

    python benchmarks/gpu_check.py [--steps 60] [--device cuda] [--only NAME]

Starts each check as a process of its own, several at a time, and prints one table at the end. Several NCCL ranks on one
GPU come last, in `multi_rank.py`; they need NCCL 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from monograph.train.records import read_records

RECIPES = ("llama3_debugmodel", "qwen3_debugmodel", "qwen3_debugmodel_moe", "deepseek_v3_debugmodel")
FAST = "--compile.numerics fast"
EAGER = "--compile.mode eager"
RANKS = "several ranks"
RANKED_AT_ONCE = 3
"""Checks with ranks of their own at a time: the buffers of thirty NCCL ranks fill a GPU of 140 GB."""
STEPS = "--training.steps 8"
SHORT = f"{STEPS} --training.seq_len 128 --validator.interval 0 --metrics.progress off"


@dataclass(frozen=True)
class Check:
    """One command and the time it may take."""

    name: str
    words: list[str]
    seconds: float = 240.0


def plan_graph_checks(recipe: str, fp32: str, bf16: str, device: str) -> list[Check]:
    """Graph mode against eager: bit for bit, also as a CUDA graph and with every memory policy; compiled, within
    rounding. Routed experts are recorded with grouped matmuls, which exist in bf16 only."""
    recorded = {"as a CUDA graph": f"{bf16} --compile.cuda_graph require"} if device == "cuda" else {}
    same = {
        "": fp32,
        "bf16": bf16,
        "full": f"{fp32} --activation_checkpoint.mode full",
        "min_cut": f"{bf16} --activation_checkpoint.mode min_cut",
        "offload": f"{bf16} --passes.offload_activations.budget_gib 1",
        "kept weights": f"{bf16} --passes.on cache_cast_weights",
        **recorded,
    }
    close = {
        "blocks": f"{fp32} --passes.mark_regions.regions blocks",
        "whole": f"{fp32} --passes.on compile_whole",
    }
    fast = f"{bf16} {FAST}" + (" --compile.cuda_graph require" if device == "cuda" else "")
    kept = "--passes.on cache_cast_weights --parallelism.reshard_after_forward false"
    pairs = [(name, bf16 if line.startswith(bf16) else fp32, line, []) for name, line in same.items()]
    pairs += [(name, fp32, line, ["--tolerance", "1e-4"]) for name, line in close.items()]
    return [
        *(
            Check(f"eager/one graph {name} {recipe}", ["compare", f"{base} {EAGER}", line, *more])
            for name, base, line, more in pairs
        ),
        Check(f"fast/fast with kept weights {recipe}", ["compare", fast, f"{fast} {kept}"]),
        Check(f"fast/fast without fuse_kernels {recipe}", ["compare", fast, f"{fast} --passes.off fuse_kernels"]),
    ]


def plan_checks(steps: int, device: str) -> list[Check]:
    """Training first, then what compares, then several ranks on one device."""
    on = f"--debug.device {device}"
    bf16 = "--training.compute_dtype bfloat16"
    exact = "--debug.deterministic true"
    found = [
        Check(f"train {recipe}", ["train", recipe, *f"{on} --training.steps {steps} --metrics.progress off".split()])
        for recipe in RECIPES
    ]
    for recipe in ("llama3_debugmodel", "deepseek_v3_debugmodel", "qwen3_debugmodel_moe"):
        for label, precision in (("fp32", ""), ("bf16", bf16)):
            same = f"{recipe} {on} {SHORT} {precision} {exact}"
            base, layer = f"{same} {EAGER}", f"{same} --compile.mode layer"
            found.append(Check(f"eager twice {recipe} {label}", ["compare", base, base]))
            fsdp2 = f"{base} --parallelism.fsdp fsdp2"  # what layer mode shards by
            found.append(
                Check(f"eager/aot_eager {recipe} {label}", ["compare", fsdp2, f"{layer} --compile.backend aot_eager"])
            )
            # Once a token goes to another expert in bf16, gradients part by more than rounding: the first steps count.
            few, tolerance = (STEPS, "1e-4") if label == "fp32" else ("--training.steps 4", "1e-2")
            words = ["compare", base.replace(STEPS, few), layer.replace(STEPS, few), "--tolerance", tolerance]
            found.append(Check(f"eager/inductor {recipe} {label}", words))
        same = f"{recipe} {on} {SHORT} {exact}"
        base = f"{same} {EAGER}"
        found.append(
            Check(f"fsdp2/graph {recipe}", ["compare", f"{base} --parallelism.fsdp fsdp2", base, "--tolerance", "1e-5"])
        )
        found += plan_graph_checks(recipe, same, f"{same} {bf16}", device)
    meshes = {
        "dp2": "--ranks 2",
        "dp2 tp2": "--ranks 4 --parallelism.tensor_parallel_degree 2",
        "dp2 tp2 ep2": "--ranks 4 --parallelism.tensor_parallel_degree 2 --parallelism.expert_parallel_degree 2",
    }
    for mesh, flags in meshes.items():
        kinds = {kind: f"{EAGER} --parallelism.fsdp {kind}" for kind in ("fsdp2", "graph")} | {"captured": ""}
        for kind, mode in kinds.items():
            recipe = "deepseek_v3_debugmodel" if "ep2" in mesh else "qwen3_debugmodel"
            words = f"verify {recipe} {flags} {on} {mode} --training.seq_len 64".split()
            found.append(Check(f"verify {mesh} {kind}", words))
    return found


def run(check: Check, folder: Path) -> tuple[bool, float, str]:
    """Whether a check passed, how long it took, and what is worth saying about it."""
    start = time.perf_counter()
    index = folder / check.name.replace(" ", "-").replace("/", "-")
    words = check.words if check.words[0] == "compare" else [*check.words, "--job.dump_folder", str(index)]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "monograph", *words], capture_output=True, text=True, timeout=check.seconds
        )
    except subprocess.TimeoutExpired:
        return False, time.perf_counter() - start, "ran out of time"
    taken = time.perf_counter() - start
    lines = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode:
        return False, taken, "\n".join(lines[-25:])
    if check.words[0] == "train":
        records = read_records(index / "metrics.jsonl")
        losses = [record["loss"] for record in records if "loss" in record]
        return losses[-1] < 0.7 * losses[0], taken, f"loss {losses[0]:.3f} -> {losses[-1]:.3f}"
    said = done.stdout.strip().splitlines()
    return True, taken, said[-1].strip() if said else ""


def main() -> int:
    """Run all checks and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--only", default="", help="run the checks whose name contains this")
    arguments = parser.parse_args()
    checks = [c for c in plan_checks(arguments.steps, arguments.device) if arguments.only in c.name]
    on_ranks = [check for check in checks if "--ranks" in check.words]
    alone = [check for check in checks if check not in on_ranks]
    passed = all([run_checks(alone, arguments.at_once), run_checks(on_ranks, RANKED_AT_ONCE)])
    return 0 if (arguments.only not in RANKS or run_ranks(arguments.device)) and passed else 1


def run_checks(checks: list[Check], at_once: int) -> bool:
    """Run checks side by side and print each one's line; whether all passed."""
    results = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:
        for check, result in zip(checks, pool.map(lambda check: run(check, Path(folder)), checks), strict=True):
            results.append(result)
            passed, taken, text = result
            if not passed:
                print(f"--- {check.name}\n{text}\n", flush=True)
            said = text.splitlines()[-1] if text else ""
            print(f"{'ok  ' if passed else 'FAIL'} {check.name:42s} {taken:6.1f} s  {said}", flush=True)
    return all(passed for passed, _, _ in results)


def run_ranks(device: str) -> bool:
    """Several ranks on this device, in a process that prints its own table; whether all of it passed."""
    if device == "cuda" and not os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE"):
        print(f"skip {RANKS}: NCCL_MULTI_RANK_GPU_ENABLE is not set; see benchmarks/README.md", flush=True)
        return True
    script = Path(__file__).with_name("multi_rank.py")
    return subprocess.run([sys.executable, str(script), "--device", device], check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
