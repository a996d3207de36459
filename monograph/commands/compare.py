"""`monograph compare`: two command lines, run one after the other, compared number by number. Loads without torch."""

import json
import math
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from monograph.commands.arguments import CompareArguments, RankOptions
from monograph.commands.request import read_request
from monograph.commands.terminal import make_console, print_plain
from monograph.errors import EXIT_FAILED, ConfigError, MonographError

COMPARED = ("loss", "grad_norm")
_SHOWN_LINES = 20


class RunFailed(MonographError):
    """One of the two runs did not finish."""


@dataclass(frozen=True)
class Difference:
    """The first number that is not the same in both runs."""

    step: int
    name: str
    left: float
    right: float


def compare(arguments: CompareArguments) -> int:
    """Run both, print every step side by side, and say whether they are equal."""
    lines = [shlex.split(text) for text in (arguments.left, arguments.right)]
    for words in lines:
        read_request(words, RankOptions())  # a typo in the second line shows before the first has run
    with tempfile.TemporaryDirectory(prefix="monograph-compare-") as folder:
        runs = [run(words, Path(folder) / side) for words, side in zip(lines, ("left", "right"), strict=True)]
    found = find_difference(*runs, tolerance=arguments.tolerance)
    show(runs, found, arguments)
    return EXIT_FAILED if found is not None else 0


def run(words: list[str], folder: Path) -> list[dict[str, float]]:
    """Train in a process of its own; the records of all steps."""
    console = make_console(stderr=True)
    console.print(f"running: monograph train {shlex.join(words)}", highlight=False)
    settings = ["--job.dump_folder", str(folder), "--checkpoint.enabled", "false"]
    given = [pair for pair in zip(settings[::2], settings[1::2], strict=True) if pair[0] not in words]
    command = [sys.executable, "-m", "monograph", "train", *words, *(word for pair in given for word in pair)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-_SHOWN_LINES:])
        raise RunFailed(
            f"monograph train {shlex.join(words)}", why=f"exit code {done.returncode}; it ended with:\n{tail}"
        )
    given_folder = Path(words[words.index("--job.dump_folder") + 1]) if "--job.dump_folder" in words else folder
    return read_records(given_folder / "metrics.jsonl")


def read_records(path: Path) -> list[dict[str, float]]:
    """The training records of a run, validation left out."""
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [record for record in records if "loss" in record]


def find_difference(
    left: list[dict[str, float]], right: list[dict[str, float]], *, tolerance: float = 0.0
) -> Difference | None:
    """The first step and number where the runs differ: at all, or relatively by more than the tolerance."""
    if len(left) != len(right):
        raise ConfigError(
            f"one run has {len(left)} steps and the other {len(right)}",
            why="they are compared step by step",
            do="give both the same --training.steps",
        )
    for ours, theirs in zip(left, right, strict=True):
        for name in COMPARED:
            if not is_close(ours[name], theirs[name], tolerance):
                return Difference(int(ours["step"]), name, ours[name], theirs[name])
    return None


def is_close(left: float, right: float, tolerance: float) -> bool:
    """Equal bit for bit without a tolerance; not-a-number equals nothing."""
    if not tolerance:
        return left == right
    return math.isclose(left, right, rel_tol=tolerance, abs_tol=0.0)


def show(runs: list[list[dict[str, float]]], found: Difference | None, arguments: CompareArguments) -> None:
    """Every step, with both values where they differ; then the verdict."""
    for ours, theirs in zip(*runs, strict=True):
        parts = [
            f"{name} {ours[name]!r}" + (" =" if ours[name] == theirs[name] else f" / {theirs[name]!r} DIFFERS")
            for name in COMPARED
        ]
        print_plain(f"step {int(ours['step']):4d}  {'  '.join(parts)}")
    how = f"within {arguments.tolerance:g}" if arguments.tolerance else "bit for bit"
    if found is None:
        print_plain(f"equal {how}: loss and gradient norm of {len(runs[0])} steps")
        return
    gap = abs(found.left - found.right) / max(abs(found.right), 1e-300)
    values = f"{found.left!r} and {found.right!r}"
    print_plain(f"different: step {found.step}, {found.name}: {values} (relative difference {gap:.1e})")
