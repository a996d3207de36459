"""Starting, training, resuming: processor time of several checkouts of this repository, run in turn.

    python benchmarks/version_cost.py before=/path/to/one after=/path/to/other --repeats 9

Times are user and system time of a command with all its ranks, so other work on the machine disturbs them little.
Each round runs every checkout once, in an order that turns by one from round to round; the table has medians.
"""

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TRAIN = (
    "train llama3_debugmodel --validator.interval 0 --metrics.progress off --debug.device cpu --model.n_layers 2 "
    "--training.seq_len 64 --training.local_batch_size 2"
)
EAGER = "--compile.mode eager"
CASES = {
    "version": "--version",
    "10 steps, eager": f"{TRAIN} {EAGER} --training.steps 10",
    "60 steps, eager": f"{TRAIN} {EAGER} --training.steps 60",
    "10 steps, graph": f"{TRAIN} --training.steps 10",
    "10 steps, graph, cache off": f"{TRAIN} --training.steps 10 --compile.cache off",
    "2 ranks, 3 steps": f"{TRAIN} {EAGER} --training.steps 3 --ranks 2",
    "resume, 1 step": f"{TRAIN} {EAGER} --training.steps 3 --checkpoint.load 2",
}
SAVED = f"{TRAIN} {EAGER} --training.steps 3 --checkpoint.interval 2 --checkpoint.keep_last 0"
"""What a resume goes on from."""


def run(checkout: Path, words: str, folder: Path) -> tuple[float, bool]:
    """Processor seconds of a command, and whether it succeeded."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "HOME": str(folder.parent)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if words.startswith("train"):
        words += f" --job.dump_folder {shlex.quote(str(folder))}"
    command = [sys.executable, "-m", "monograph", *shlex.split(words)]
    process = subprocess.Popen(
        command, cwd=folder.parent, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime, status == 0


def measure(checkouts: dict[str, Path], case: str, repeats: int, place: Path) -> dict[str, list[float]]:
    """Seconds by checkout, after one run of each that is not counted; none for a command it does not have."""
    seconds: dict[str, list[float]] = {name: [] for name in checkouts}
    names = list(checkouts)
    for number in range(repeats + 1):
        turned = names[number % len(names) :] + names[: number % len(names)]
        for name in turned:
            folder = place / name / "run"
            shutil.rmtree(folder, ignore_errors=True)
            folder.parent.mkdir(exist_ok=True)
            if case.startswith("resume"):
                shutil.copytree(place / name / "saved", folder)
            taken, is_good = run(checkouts[name], CASES[case], folder)
            if number and is_good:
                seconds[name].append(taken)
    return seconds


def main() -> None:
    """Measure every case and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    checkouts = {
        name: Path(folder).resolve() for name, _, folder in (each.partition("=") for each in arguments.checkouts)
    }
    found = {}
    print("| case | " + " | ".join(checkouts) + " |\n|---|" + "---|" * len(checkouts), flush=True)
    with tempfile.TemporaryDirectory() as place:
        for name, checkout in checkouts.items():
            (Path(place) / name).mkdir()
            run(checkout, SAVED, Path(place) / name / "saved")
        for case in arguments.cases:
            found[case] = measure(checkouts, case, arguments.repeats, Path(place))
            cells = [f"{statistics.median(each):.3f} s" if each else "-" for each in found[case].values()]
            print(f"| {case} | " + " | ".join(cells) + " |", flush=True)
            if arguments.out:
                arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
