"""One recipe in each compile mode, side by side: speed, memory, and the time to the first step.

    python benchmarks/modes.py llama3_debugmodel
    python benchmarks/modes.py deepseek_v3_debugmodel --modes eager exact --most-first-step 2 --most-step 1.05
    python benchmarks/modes.py deepseek_v3_debugmodel --modes eager layer --steps 40 --save --training.seq_len 512

Every mode is a training run in a process of its own, one after the other, so that none inherits another's memory or
compiled code. Compilers start with empty caches, as on a machine that sees the model for the first time; with
`--caches warm` they use what the last run left. Flags of the recipe (and `--ranks N`) are passed on to all runs.
"""

import argparse
import math
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.train.records import read_records

RESULTS = Path(__file__).parent / "results"
MODES: dict[str, dict[str, str]] = {
    "eager": {"--compile.mode": "eager"},
    "layer": {"--compile.mode": "layer"},
    "exact": {"--compile.mode": "graph"},
    "fast": {"--compile.mode": "graph", "--compile.numerics": "fast"},
    "inductor-regions": {"--compile.mode": "graph", "--passes.mark_regions.regions": "blocks"},
    "inductor-whole": {"--compile.mode": "graph", "--passes.on": "compile_whole"},
}
"""What can be measured, by the names that `monograph bench` uses."""
BY_DEFAULT = ("eager", "layer", "exact", "fast")
_SHOWN_LINES = 25
_TOTAL = re.compile(r"^\s*(?:.*\s)?total\s+([\d.]+) s\s*$", re.MULTILINE)


class RunFailed(Exception):
    """A mode did not finish."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one mode did."""

    mode: str
    tokens_per_second: float
    """The median over the steps after the warm-up, over all ranks."""
    ms: float
    """Of a step, the same median."""
    peak_memory_gib: float
    """CUDA: what the allocator held at most; CPU: the largest the process was. Of rank 0."""
    first_step_seconds: float
    """From the start of the process to the end of the first step, compiling included."""
    compiled_graphs: int | None
    mfu: float | None
    last_loss: float
    """Of the last step: modes that do the same work end with (nearly) the same."""


def measure(mode: str, words: Sequence[str], *, steps: int, warmup: int, caches: str) -> Row:
    """Train in one mode and read what the run wrote about itself."""
    with tempfile.TemporaryDirectory(prefix="monograph-modes-") as folder:
        index, environment = Path(folder) / "run", dict(os.environ)
        if caches == "cold":
            environment |= {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor", "TRITON_CACHE_DIR": f"{folder}/triton"}
        fixed = {
            **MODES[mode],
            "--training.steps": str(steps),
            "--job.dump_folder": str(index),
            "--checkpoint.enabled": "false",
            "--validator.interval": "0",
            "--metrics.progress": "off",
            "--debug.log_level": "info",
        }
        flags = [word for pair in fixed.items() for word in pair]
        command = [sys.executable, "-m", "monograph", "train", *words, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-_SHOWN_LINES:])
            raise RunFailed(f"{shlex.join(command)}\nended with exit code {done.returncode}:\n{tail}")
        records = read_records(index / "metrics.jsonl")
        logged = (index / "logs" / "rank-0.log").read_text(encoding="utf-8")
    return summarize(mode, records, logged, warmup=warmup)


def summarize(mode: str, records: Sequence[dict[str, Any]], logged: str, *, warmup: int) -> Row:
    """One row from a run's metrics and its log, which has the table of the time to the first step."""
    steady = records[warmup:]
    found = _TOTAL.search(logged)
    assert found is not None, "the log does not say how long the first step took"
    mfus = [record["mfu"] for record in steady if record.get("mfu") is not None]
    return Row(
        mode=mode,
        tokens_per_second=statistics.median(record["tokens_per_second"] for record in steady),
        ms=statistics.median(record["ms"] for record in steady),
        peak_memory_gib=max(record["peak_memory_gib"] for record in records),
        first_step_seconds=float(found[1]),
        compiled_graphs=records[-1].get("compiled_graphs"),
        mfu=statistics.median(mfus) if mfus else None,
        last_loss=records[-1]["loss"],
    )


def format_table(rows: Sequence[Row]) -> str:
    """Aligned columns; the ratio is to the first row."""
    head = (
        "mode",
        "tokens/s",
        f"x {rows[0].mode}",
        "ms/step",
        "MFU",
        "peak GiB",
        "first step s",
        "graphs",
        "last loss",
    )
    lines = [head]
    for row in rows:
        lines.append(
            (
                row.mode,
                f"{row.tokens_per_second:,.0f}",
                f"{row.tokens_per_second / rows[0].tokens_per_second:.2f}",
                f"{row.ms:.1f}",
                "-" if row.mfu is None else f"{100 * row.mfu:.1f} %",
                f"{row.peak_memory_gib:.2f}",
                f"{row.first_step_seconds:.1f}",
                "-" if row.compiled_graphs is None else str(row.compiled_graphs),
                f"{row.last_loss:.5f}",
            )
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def find_excess(rows: Sequence[Row], most_first_step: float, most_step: float) -> list[str]:
    """What takes more than these multiples of the first row's time."""
    base = rows[0]
    found = []
    for row in rows[1:]:
        first, step = row.first_step_seconds / base.first_step_seconds, row.ms / base.ms
        print(f"{row.mode} / {base.mode}: first step {first:.2f}x, step {step:.2f}x")
        if first > most_first_step:
            found.append(f"{row.mode}: the first step comes after {first:.2f}x, more than {most_first_step}x")
        if step > most_step:
            found.append(f"{row.mode}: a step takes {step:.2f}x, more than {most_step}x")
    return found


def describe_machine() -> dict[str, Any]:
    """What the numbers were measured on. The GPU is asked in a process of its own: this one needs no torch."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    gpu = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
    return {"system": platform.platform(), "cpu": find_cpu_name(), "cores": os.cpu_count(), "gpu": gpu or None}


def find_cpu_name() -> str:
    """The processor as the system calls it."""
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor()


def describe_versions() -> dict[str, str]:
    """What the numbers were measured with."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        commit = ""
    return {
        "monograph": version("monograph"),
        "commit": commit,
        "torch": version("torch"),
        "python": platform.python_version(),
    }


def save(rows: Sequence[Row], recipe: str, arguments: argparse.Namespace, command: str, folder: Path) -> Path:
    """Write a dated result that says how to get it again."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"\W+", "-", recipe.rpartition(":")[2])
    path = folder / f"{time.strftime('%Y-%m-%d-%H%M%S')}-modes-{name}.json"
    text = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command,
        "machine": describe_machine(),
        "versions": describe_versions(),
        "steps": arguments.steps,
        "warmup": arguments.warmup,
        "caches": arguments.caches,
        "rows": [asdict(row) for row in rows],
    }
    path.write_text(strict_json.dump(text, indent=2) + "\n", encoding="utf-8")
    return path


def main(words: Sequence[str] | None = None) -> int:
    """Run every mode, print the table, save it when asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("recipe")
    parser.add_argument("--modes", nargs="+", default=BY_DEFAULT, choices=list(MODES), help="the first is the base")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5, help="first steps that do not count")
    parser.add_argument("--caches", choices=("cold", "warm"), default="cold")
    parser.add_argument(
        "--most-first-step", type=float, default=math.inf, help="exit 1 beyond so many times the base's"
    )
    parser.add_argument("--most-step", type=float, default=math.inf, help="the same for the time of a step")
    parser.add_argument("--save", action="store_true", help="write a dated JSON file")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder for it")
    arguments, flags = parser.parse_known_args(words)
    if not 0 <= arguments.warmup < arguments.steps:
        parser.error(f"--warmup {arguments.warmup} leaves nothing of --steps {arguments.steps}")
    settings = {"steps": arguments.steps, "warmup": arguments.warmup, "caches": arguments.caches}
    rows = []
    for mode in arguments.modes:
        print(f"running {arguments.recipe} in mode {mode}", file=sys.stderr)
        try:
            rows.append(measure(mode, [arguments.recipe, *flags], **settings))
        except RunFailed as error:
            print(error, file=sys.stderr)
            return 1
    print(format_table(rows))
    excess = find_excess(rows, arguments.most_first_step, arguments.most_step)
    if arguments.save:
        given = sys.argv[1:] if words is None else words
        path = save(
            rows, arguments.recipe, arguments, shlex.join(["python", "benchmarks/modes.py", *given]), arguments.results
        )
        print(f"saved {path}")
    print("\n".join(excess), file=sys.stderr)
    return 1 if excess else 0


if __name__ == "__main__":
    sys.exit(main())
