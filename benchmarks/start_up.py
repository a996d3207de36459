"""From the shell to the first step of one process: user time against that of `import torch`, and what is imported.

    python benchmarks/start_up.py [--recipe llama3_debugmodel] [--times 5] [--out FILE]

User time and medians, because a busy machine stretches the clock; ratios to `import torch`, because machines differ.
The cache of captured steps is a folder of this program: `captured` finds it empty, `kept` finds the step there.
"""

import argparse
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUIET = (
    "--training.steps",
    "1",
    "--checkpoint.enabled",
    "false",
    "--validator.interval",
    "0",
    "--metrics.page",
    "false",
)
CASES: dict[str, tuple[str, ...]] = {
    "eager": ("--compile.mode", "eager"),
    "captured": ("--compile.cache", "off"),
    "kept": (),
}
"""Name -> flags of a start."""
IMPORTED = re.compile(r"^import time:\s+(\d+) \|", flags=re.M)
SECONDS = 600


def run(words: Sequence[str], folder: Path) -> tuple[float, str]:
    """User seconds of one process, and what it wrote to its standard error."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n" + "\n".join(lines[-20:]))
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, done.stderr


def measure(starts: Mapping[str, Sequence[str]], folder: Path, times: int) -> dict[str, dict[str, float]]:
    """Median user seconds by start, and modules imported with the milliseconds they took.

    Starts take turns, because a machine that others use is slower at one time than at another; the first turn fills
    caches and is not counted.
    """
    turns = [{name: run(words, folder)[0] for name, words in starts.items()} for _ in range(times + 1)]
    rows = {}
    for name, words in starts.items():
        own = [int(each) for each in IMPORTED.findall(run(["-X", "importtime", *words], folder)[1])]
        seconds = statistics.median(turn[name] for turn in turns[1:])
        rows[name] = {"seconds": seconds, "modules": len(own), "import_ms": sum(own) / 1000}
    return rows


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="llama3_debugmodel")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args(words)
    starts = {"import torch": ["-c", "import torch"]} | {
        case: ["-m", "monograph", "train", arguments.recipe, *QUIET, *flags] for case, flags in CASES.items()
    }
    with tempfile.TemporaryDirectory(prefix="monograph-start-up-") as name:
        rows = measure(starts, Path(name), arguments.times)
    torch = rows["import torch"]
    print("| start | user s | of import torch | modules | imports, of those of torch |")
    print("|---|---|---|---|---|")
    for case, row in rows.items():
        ratio, imports = row["seconds"] / torch["seconds"], row["import_ms"] / torch["import_ms"]
        print(f"| {case} | {row['seconds']:.2f} | {ratio:.2f}x | {row['modules']:.0f} | {imports:.2f}x |", flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
