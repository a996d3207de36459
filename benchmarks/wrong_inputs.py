"""Try inputs that newcomers get wrong: exit code, CPU seconds and first line of every answer.

    python -m benchmarks.wrong_inputs                      # all, as a table
    python -m benchmarks.wrong_inputs --only data --out t  # one kind; the table goes to a file

Each command runs in a process of its own, in a fresh copy of a folder with texts, models and code that have what is
wrong with them. CPU seconds are those of the process and its children, so a busy machine does not count.
"""

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.wrong_input_cases import CASES, write_files

ROOT = Path(__file__).parent.parent
EARLY_SECONDS = 2.0
"""CPU seconds of an early answer."""
MOST_SECONDS = 240
"""Wall-clock limit of one command."""
SMALL = "--training.seq_len 32 --training.steps 2 --model.n_layers 1 --model.dim 64 --validator.interval 0"


@dataclass(frozen=True)
class Answer:
    """How one command ended."""

    kind: str
    command: str
    code: int
    seconds: float
    text: str
    wanted: str

    @property
    def first_line(self) -> str:
        """First line that says something."""
        return next((line.strip() for line in self.text.splitlines() if line.strip()), "(nothing)")

    @property
    def has_traceback(self) -> bool:
        """Whether Python's own report of an exception was printed."""
        return "Traceback (most recent call last)" in self.text

    @property
    def is_clear(self) -> bool:
        """Refused, without a traceback, and by the name of what is wrong."""
        return self.code in (1, 2) and not self.has_traceback and re.search(self.wanted, self.text) is not None

    @property
    def verdict(self) -> str:
        """One word for the table."""
        if self.has_traceback:
            return "traceback"
        if not self.is_clear:
            return "unclear"
        return "early" if self.seconds <= EARLY_SECONDS else "late"


def ask(kind: str, command: str, wanted: str, files: Path) -> Answer:
    """Run one command in a copy of the folder."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "work"
        shutil.copytree(files, place, symlinks=True)
        environment = os.environ | {
            "PYTHONPATH": f"{place}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "160",
        }
        words = [sys.executable, "-m", "monograph", *shlex.split(command.replace("SMALL", SMALL))]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(
            words,
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        try:
            printed, said = process.communicate(timeout=MOST_SECONDS)
            code = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            printed, said = process.communicate()
            code = 124
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return Answer(kind, command, code, seconds, said + printed, wanted)


def render(answers: list[Answer]) -> str:
    """The answers as a table of Markdown, what needs a look first."""
    order = ("traceback", "unclear", "late", "early")
    lines = ["| verdict | kind | command | code | CPU s | first line |", "|---|---|---|---|---|---|"]
    for each in sorted(answers, key=lambda answer: order.index(answer.verdict)):
        cells = (each.command, each.first_line[:160])
        command, first = (cell.replace("|", "\\|").replace("<", "&lt;") for cell in cells)
        lines.append(f"| {each.verdict} | {each.kind} | `{command}` | {each.code} | {each.seconds:.1f} | {first} |")
    counts = {word: sum(each.verdict == word for each in answers) for word in order}
    total = ", ".join(f"{count} {word}" for word, count in reversed(counts.items()))
    return "\n".join([*lines, "", f"{len(answers)} inputs: {total}."]) + "\n"


def main() -> int:
    """Ask everything and print the table; 1 where there was a traceback."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="a kind, or a part of a command")
    parser.add_argument("--out", default="", help="file for the table")
    parser.add_argument("--json", default="", help="file for whole answers")
    options = parser.parse_args()
    answers = []
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder) / "files"
        write_files(files)
        for kind, command, wanted in CASES:
            if options.only in kind or options.only in command:
                start = time.monotonic()
                answers.append(ask(kind, command, wanted, files))
                took = time.monotonic() - start
                each = answers[-1]
                print(f"{each.verdict:9} {each.seconds:5.1f} s ({took:.0f}) {command}: {each.first_line}", flush=True)
    table = render(answers)
    print(table.rstrip().splitlines()[-1])
    if options.out:
        Path(options.out).write_text(table)
    if options.json:
        Path(options.json).write_text(json.dumps([vars(each) for each in answers], indent=1))
    return 1 if any(each.has_traceback for each in answers) else 0


if __name__ == "__main__":
    raise SystemExit(main())
