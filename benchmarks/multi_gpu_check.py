"""One table about the GPUs of this machine, to run once and to send back: are several ranks right, and how fast?

    python benchmarks/multi_gpu_check.py [--ranks N] [--device cpu] [--faults] [--out FILE]

For 2 to 8 GPUs, one rank each (or several ranks on one, with NCCL 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1; such
times say nothing about a cluster). Checked: the order in which groups are created, every collective by dtype and size,
one by one, several tensors in one call and many under way at once, the members of every group along every axis, sends
between pipeline ranks, `verify` along every axis that this many ranks allow, CUDA graphs with collectives inside
against op by op, bit for bit. Measured: bandwidth of each collective, overlap with matmuls. With --faults a rank is
killed and another stopped under the watchdog (benchmarks/multi_rank.py). The exit code is 1 if anything is wrong. On
the CPU (gloo) it is a rehearsal: everything but NCCL and CUDA graphs is checked.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
Row = tuple[str, bool, float, str]
SMALL = ["--model.n_layers", "2", "--training.seq_len", "64", "--training.steps", "4"]
SMALL += ["--training.compute_dtype", "float32"]
DENSE, MOE = "llama3_debugmodel", "deepseek_v3_debugmodel"
QUIET = ["--metrics.progress", "off", "--validator.interval", "0", "--checkpoint.enabled", "false"]
SECONDS = 900


def plan_axes(ranks: int) -> dict[str, tuple[str, dict[str, int | str]]]:
    """A recipe and degrees for every axis, and for all that fit together."""
    half = ranks // 2
    axes = {
        "dp": (DENSE, {}),
        "hsdp": (DENSE, {"data_parallel_replicate_degree": 2}),
        "tp": (DENSE, {"tensor_parallel_degree": 2}),
        "ep": (MOE, {"expert_parallel_degree": 2}),
        "cp": (DENSE, {"context_parallel_degree": 2}),
        "cp, ulysses": (DENSE, {"context_parallel_degree": 2, "context_parallel_method": "ulysses"}),
        "pp": (DENSE, {"pipeline_parallel_degree": 2}),
    }
    if half > 1:
        axes["cp tp"] = (DENSE, {"context_parallel_degree": 2, "tensor_parallel_degree": 2})
        axes["pp tp"] = (DENSE, {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2})
        axes["dp tp ep"] = (MOE, {"tensor_parallel_degree": 2, "expert_parallel_degree": 2})
        axes["tp etp"] = (MOE, {"tensor_parallel_degree": 2, "expert_tensor_parallel_degree": 2})
    return axes


def run_words(words: Sequence[str], folder: Path) -> tuple[int, float, str]:
    """A monograph command: exit code, seconds, the end of what it said."""
    begin = time.perf_counter()
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-m", "monograph", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    said = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode, time.perf_counter() - begin, " ".join(said[-3:])[:160] if said else ""


def check_axes(ranks: int, device: str, folder: Path) -> Iterator[Row]:
    """`monograph verify` along every axis."""
    for name, (recipe, degrees) in plan_axes(ranks).items():
        flags = [word for field, degree in degrees.items() for word in (f"--parallelism.{field}", str(degree))]
        words = ["verify", recipe, "--ranks", str(ranks), "--debug.device", device, *SMALL, *flags]
        code, seconds, said = run_words(words, folder)
        yield f"verify, {name}", code == 0, seconds, said


def check_cuda_graph(ranks: int, device: str, folder: Path) -> Row:
    """The step as one CUDA graph, collectives included, against the same step op by op."""
    common = f"{DENSE} --ranks {ranks} --debug.deterministic true --debug.device {device} {' '.join([*SMALL, *QUIET])}"
    pair = [f"{common} --compile.cuda_graph {wanted}" for wanted in ("off", "require")]
    code, seconds, said = run_words(["compare", *pair], folder)
    return "CUDA graph with collectives, bit for bit", code == 0, seconds, said


def check_ranks(ranks: int, device: str, folder: Path) -> list[Row]:
    """What several ranks check and measure in one set of processes."""
    out = folder / "rows.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(ROOT / "benchmarks" / "multi_gpu_ranks.py"), "--device", device, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode or not out.exists():
        return [("ranks meet", False, 0.0, done.stderr.strip()[-300:].replace("\n", " "))]
    return [(name, passed, seconds, text) for name, passed, seconds, text in json.loads(out.read_text())]


def check_faults(device: str) -> Row:
    """A killed and a stopped rank, op by op and as one CUDA graph, in a process of its own."""
    begin = time.perf_counter()
    command = [sys.executable, str(ROOT / "benchmarks" / "multi_rank.py"), "--device", device, "--only", "faults"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS)
    said = done.stdout.strip().splitlines()
    return "a killed rank, a stopped rank", done.returncode == 0, time.perf_counter() - begin, " ".join(said[-2:])[:160]


def describe_machine(ranks: int, device: str) -> str:
    """What the numbers belong to."""
    if device == "cpu":
        return f"{ranks} CPU ranks over gloo, {platform.machine()}, torch {torch.__version__}"
    names = sorted({torch.cuda.get_device_name(each) for each in range(torch.cuda.device_count())})
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return f"{ranks} ranks on {torch.cuda.device_count()} x {', '.join(names)}, torch {torch.__version__}, NCCL {nccl}"


def render(rows: Sequence[Row], machine: str) -> str:
    """One table, in Markdown."""
    lines = [f"{machine}\n", "| check | | ms | |", "|---|---|---|---|"]
    lines += [f"| {name} | {'ok' if ok else '**WRONG**'} | {1000 * s:,.1f} | {text} |" for name, ok, s, text in rows]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=max(2, torch.cuda.device_count()))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--skip-verify", action="store_true", help="collectives, bandwidth and overlap alone")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.ranks < 2 or given.ranks % 2:
        parser.error(f"--ranks must be an even number, got {given.ranks}: every axis is checked with degree 2")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = check_ranks(given.ranks, given.device, folder)
        if not given.skip_verify:
            rows += check_axes(given.ranks, given.device, folder)
            rows += [check_cuda_graph(given.ranks, given.device, folder)] if given.device == "cuda" else []
        rows += [check_faults(given.device)] if given.faults else []
    text = render(rows, describe_machine(given.ranks, given.device))
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return 0 if all(passed for _, passed, _, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
