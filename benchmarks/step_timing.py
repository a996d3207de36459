"""Are the times of steps right? Trains a few steps and compares what each record says with the host's own clock.

    python benchmarks/step_timing.py [--device cuda] [--recipe llama3_debugmodel] [--steps 60]

Prints a table and ends with 1 when one of these does not hold:

- the steps' times add up to the time between the first and the last record, within 10 %, less what lies between steps;
- no step is reported as faster than the device can compute it (MFU above 1, or `over_peak`);
- the last step, which is read without a step after it, takes what the others take: between half and twice the median;
- the update is a part of its step.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from monograph.train.records import read_records


def run(recipe: str, device: str, steps: int, folder: Path) -> list[dict[str, Any]]:
    """The records of a run with validations and checkpoints on the way."""
    flags = ["--training.steps", str(steps), "--debug.device", device, "--job.dump_folder", str(folder), "--quiet"]
    flags += ["--validator.interval", str(max(2, steps // 3)), "--checkpoint.interval", str(max(2, steps // 2))]
    subprocess.run([sys.executable, "-m", "monograph", "train", recipe, *flags], check=True)
    return [record for record in read_records(folder / "metrics.jsonl") if "loss" in record]


def check(records: list[dict[str, Any]]) -> dict[str, tuple[str, bool]]:
    """What was measured, and whether it can be."""
    later = records[1:]
    total = sum(record["ms"] for record in later) / 1000
    spent = [later[-1]["goodput"][kind] - records[0]["goodput"][kind] for kind in ("validation", "checkpoint")]
    wall = later[-1]["time"] - records[0]["time"] - sum(spent)
    median = statistics.median(record["ms"] for record in later)
    last = later[-1]["ms"]
    worst = max((record["mfu"] or 0.0) for record in records)
    return {
        "steps together / wall clock": (f"{total:.3f} s / {wall:.3f} s", abs(total - wall) <= 0.1 * wall),
        "largest MFU": (f"{100 * worst:.1f} %", worst <= 1 and not any("over_peak" in record for record in records)),
        "last step / median": (f"{last:.1f} ms / {median:.1f} ms", 0.5 * median <= last <= 2 * median),
        "update within its step": (
            f"{statistics.median(record['update_ms'] for record in later):.1f} ms",
            all(0 <= record["update_ms"] <= record["ms"] * 1.001 for record in records),
        ),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--recipe", default="llama3_debugmodel")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = check(run(given.recipe, given.device, given.steps, Path(folder) / "run"))
    for name, (text, is_right) in found.items():
        print(f"{'ok ' if is_right else 'NO '} {name:<28} {text}")
    return 0 if all(is_right for _, is_right in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
