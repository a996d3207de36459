"""`monograph compare`: two command lines, run one after the other, compared number by number. Loads without torch."""

import math
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from monograph.commands.arguments import CompareArguments, RankOptions
from monograph.commands.request import Request, read_request
from monograph.crash import MAX_LINES, describe_exit
from monograph.errors import EXIT_FAILED, ConfigError, MonographError
from monograph.plurals import counted
from monograph.private_temporary import make_private_temporary
from monograph.system.child_process import safe_import_path
from monograph.system.console import make_console, print_plain
from monograph.system.foreign_text import escape_lines
from monograph.system.own_tree import remove_made
from monograph.train.layout import plan_run_mesh
from monograph.train.records import read_records
from monograph.whole_file import write_whole

PROGRESS_SECONDS = 5.0
"""Seconds between the lines that say how far a run is."""
_STEP = re.compile(r"\bstep +\d+/\d+")
COMPARED = ("loss", "grad_norm")
_SHOWN_LINES = MAX_LINES + 20
"""All that the launcher says about ranks that failed, which comes last."""


class RunFailed(MonographError):
    """One of the two runs did not finish."""


class NotComparable(MonographError):
    """Both runs finished, but not with the same steps."""


@dataclass(frozen=True)
class MetricDifference:
    """The first number that is not the same in both runs."""

    step: int
    name: str
    left: float
    right: float


@dataclass(frozen=True)
class ComparedRun:
    """What one of the two runs left behind."""

    records: list[dict[str, float]]
    numerics: str
    """Its promise, as the run wrote it."""


def compare(arguments: CompareArguments) -> int:
    """Run both, print every step side by side, and say whether they are equal."""
    lines = [take_apart(text) for text in (arguments.left, arguments.right)]
    requests = [read_line(words) for words in lines]  # a typo in the second line shows before the first has run
    check_steps(*requests)
    with kept_on_failure() as folder:
        folders = (folder / "left", folder / "right")
        made = [run(*each) for each in zip(lines, requests, folders, strict=True)]
        runs = [each.records for each in made]
        found = find_difference(*runs, tolerance=arguments.tolerance)
    for side, each in zip(("left", "right"), made, strict=True):
        print_plain(f"numerics promised by the {side} run: {each.numerics}")
    show(runs, found, arguments)
    return EXIT_FAILED if found is not None else 0


@contextmanager
def kept_on_failure() -> Iterator[Path]:
    """A new folder, deleted afterwards; the logs of runs that failed stay in it, and the error says where."""
    folder = make_private_temporary("monograph-compare-")
    try:
        yield folder
    except MonographError as error:
        where = f"the logs are kept in {folder}"
        raise type(error)(error.what, why=error.why, do=f"{error.do}; {where}" if error.do else where) from None
    except BaseException:
        remove_made(folder)
        raise
    remove_made(folder)


def take_apart(text: str) -> list[str]:
    """The words of a line, as a shell would see them."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"cannot parse the run {text!r}", why=str(error).lower()) from None


def read_line(words: list[str]) -> Request:
    """What a line asks for, checked as far as that goes without running it."""
    request = read_request(words, RankOptions())
    plan_run_mesh(request.config, max(request.options["ranks"], 1))
    return request


def check_steps(left: Request, right: Request) -> None:
    """Two runs of different length have no last step in common."""
    counts = [request.config.training.steps for request in (left, right)]
    if counts[0] != counts[1]:
        raise ConfigError(
            f"one run has {counts[0]} steps and the other {counts[1]}",
            why="they are compared step by step",
            do=f"--training.steps {min(counts)} in both",
        )


def run(words: list[str], request: Request, folder: Path) -> ComparedRun:
    """Train in a process of its own; the records of all steps, and what the run promised about its numerics."""
    line = f"monograph train {shlex.join(words)}"
    make_console(stderr=True).print(f"running: {line}")
    ours = {"job.dump_folder": str(folder), "checkpoint.enabled": "false"}
    added = {path: value for path, value in ours.items() if request.origins[path] != "flag"}
    flags = [word for path, value in added.items() for word in (f"--{path}", value)]
    command = [sys.executable, "-m", "monograph", "train", *words, *flags]
    with safe_import_path():
        code, output = run_and_follow(command)
    if code:
        write_whole(folder.parent / f"{folder.name}-output.log", output)
        tail = "\n".join(output.splitlines()[-_SHOWN_LINES:])
        raise RunFailed(line, why=f"it {describe_exit(code)}; the end of its output:\n{tail}")
    written = folder if "job.dump_folder" in added else Path(request.config.job.dump_folder)
    path = written / "metrics.jsonl"
    if not path.exists():
        raise RunFailed(f"{path} is missing", why="the run ended with exit code 0 and wrote no metrics")
    promise = written / "numerics.txt"
    promised = promise.read_text(encoding="utf-8").strip() if promise.exists() else f"{promise} is missing"
    return ComparedRun([record for record in read_records(path) if "loss" in record], promised)


def run_and_follow(command: Sequence[str]) -> tuple[int, str]:
    """Run a command and return its exit code and output; its newest step is shown every few seconds."""
    lines: list[str] = []
    shown = time.monotonic()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if _STEP.search(line) and time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                make_console(stderr=True).print(escape_lines(f"  {line.strip()}"), markup=False, highlight=False)
        return process.wait(), "".join(lines)
    except BaseException:
        process.kill()
        process.wait()
        raise


def find_difference(
    left: list[dict[str, float]], right: list[dict[str, float]], *, tolerance: float = 0.0
) -> MetricDifference | None:
    """The first step and number where the runs differ: at all, or relatively by more than the tolerance."""
    numbers = [[int(record["step"]) for record in records] for records in (left, right)]
    if numbers[0] != numbers[1]:
        spans = [f"{counted(len(each), 'step')} ({each[0]} to {each[-1]})" if each else "no steps" for each in numbers]
        raise NotComparable(f"one run wrote {spans[0]} and the other {spans[1]}", why="they are compared step by step")
    for ours, theirs in zip(left, right, strict=True):
        for name in COMPARED:
            if not is_close(ours[name], theirs[name], tolerance):
                return MetricDifference(int(ours["step"]), name, ours[name], theirs[name])
    return None


def is_close(left: float, right: float, tolerance: float) -> bool:
    """Equal bit for bit without a tolerance; not-a-number equals nothing."""
    if not tolerance:
        return left == right
    return math.isclose(left, right, rel_tol=tolerance, abs_tol=0.0)


def describe_pair(name: str, left: float, right: float, tolerance: float) -> str:
    """A number of both runs: once where it is equal, else both, with whether they differ by more than is allowed."""
    if left == right:
        return f"{name} {left!r} ="
    return f"{name} {left!r} / {right!r} {'within' if is_close(left, right, tolerance) else 'DIFFERS'}"


def show(runs: list[list[dict[str, float]]], found: MetricDifference | None, arguments: CompareArguments) -> None:
    """Every step, with both values where they differ; then the verdict."""
    for ours, theirs in zip(*runs, strict=True):
        parts = [describe_pair(name, ours[name], theirs[name], arguments.tolerance) for name in COMPARED]
        print_plain(f"step {int(ours['step']):4d}  {'  '.join(parts)}")
    how = f"within {arguments.tolerance:g}" if arguments.tolerance else "bit for bit"
    if found is None:
        print_plain(f"equal {how}: loss and gradient norm of {counted(len(runs[0]), 'step')}")
        return
    gap = abs(found.left - found.right) / max(abs(found.right), 1e-300)
    values = f"{found.left!r} and {found.right!r}"
    print_plain(f"different: step {found.step}, {found.name}: {values} (relative difference {gap:.1e})")
