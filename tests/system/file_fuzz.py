"""Damaged, hostile and odd files and folders: `make test-fuzz`, or --seed 17 for one.

    python -m tests.system.file_fuzz [--count 5000] [--first 0] [--seed 17] [--go-on]

A seed decides everything. In a copy of a home folder with a run, packed shards, texts, a Hugging Face model and more,
one file or folder is changed, and a command that reads it runs in a child process without privileges. It works as
before, or refuses in words with the name of the file, within two seconds and 100 MB more than it takes otherwise; and
nothing outside of what it writes has changed. Anything else is a failure.
"""

import contextlib
import ctypes
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from monograph.cli import load, main
from monograph.commands.table import COMMANDS
from monograph.whole_file import write_whole
from tests.kit.fuzzing import Failed, run_fuzzer
from tests.system.file_home import GO_ON, GRAPH, HERE, NEW, OUT, SMALL, TEXTS, TRAIN
from tests.system.file_mutations import BEHIND_A_LINK, CONTENTS, SHAPES, Impossible, digest

MORE_SECONDS, MORE_BYTES = 2.0, 100 << 20
_LIBC = ctypes.CDLL(None, use_errno=True)
_CAPABILITIES_VERSION = 0x20080522
HANGS_SECONDS = 60.0
"""Of the clock, on a machine that is busy; what counts is the processor's time."""
ACCEPTED, REFUSED_IN_WORDS = "works", "refused in words"
GENERATE = "--prompt ab --max_new_tokens 2 --device cpu"


@dataclass(frozen=True)
class Kind:
    """Files of one kind and the commands that read them."""

    files: str
    """Pattern below the home folder."""
    commands: tuple[str, ...]
    writes: tuple[str, ...] = ()
    """Where these commands write besides OUT and NEW: prefixes."""
    weight: int = 1


KINDS = (
    Kind("run/**/*", ("watch run --out out/page.html", "goodput run"), weight=4),
    Kind("run/**/*", (f"generate run {GENERATE}", "evaluate run --data texts/a.jsonl --device cpu"), weight=4),
    Kind("run/**/*", ("hf export run out/hf", f"{HERE} {TEXTS} --model.from run"), weight=2),
    Kind(
        "run/**/*",
        (
            f"{GO_ON} latest",
            f"{TRAIN} {TEXTS} --job.dump_folder run",
        ),
        writes=("run",),
        weight=5,
    ),
    Kind("run", (f"{GO_ON} auto",), writes=("run",)),
    Kind("packed/**/*", (f"{HERE} --training.steps 1 --dataloader.dataset packed",), weight=4),
    Kind("packed", ("data pack texts packed --overwrite true",), writes=("packed",)),
    Kind("packed/**/*", ("data pack texts packed --overwrite true",), writes=("packed",)),
    Kind(
        "texts/**/*",
        (f"{HERE} {TEXTS}", "data pack texts out/packed", "evaluate run --data texts --device cpu"),
        weight=3,
    ),
    Kind("hf/**/*", ("hf import hf out/imported", f"generate hf {GENERATE}"), weight=6),
    Kind("artifact/**/*", ("artifact show artifact",), weight=2),
    Kind(
        "artifact/**/*",
        (f"train {GRAPH} --job.dump_folder new --compile.artifact artifact",),
        weight=2,
    ),
    Kind(
        "artifact/**/*",
        (f"precompile {GRAPH} --out artifact --overwrite true",),
        writes=("artifact",),
    ),
    Kind("machine.json", ("machine show machine.json",), weight=2),
    Kind(
        "schedule.csv",
        (
            f"inspect llama3_debugmodel {SMALL} --out out/seen --ranks 2 "
            "--training.global_batch_size 8 --parallelism.pipeline_parallel_degree 2 "
            "--parallelism.pipeline_schedule schedule.csv",
        ),
    ),
    Kind("report/report.json", ("report compare report report --out out/page.html",)),
    Kind("*trace.json", ("trace join trace.json measured_trace.json --out out/trace.json",)),
    Kind("prompts.txt", ("generate run --prompt_file prompts.txt --max_new_tokens 1 --device cpu",)),
)


@dataclass
class Ended:
    """How a command ended."""

    code: int
    """Its exit code; below 0 the signal that ended it."""
    said: str
    seconds: float
    """Of the processor."""
    bytes: int
    """The most memory it had."""
    waited: float = 0.0


@dataclass
class FileFuzzer:
    """The home folder that is copied, and what commands take when nothing has been changed."""

    folder: Path
    usual: dict[str, Ended] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = self.folder / "home"
        if not self.home.exists():
            made = self.folder / "made"
            made.mkdir(parents=True)
            # in a process of its own: thread pools that it starts would be missing in forked children
            subprocess.run([sys.executable, "-m", "tests.system.file_home", made], check=True, timeout=300)
            made.rename(self.home)
        for command in COMMANDS:  # imported here once, and not by every child
            load(command.function)

    def check_seed(self, seed: int) -> Iterator[str]:
        """Change one file or folder and run one command."""
        draw = random.Random(seed)
        copy = self.folder / f"case-{seed}"
        _remove(copy)
        try:
            kind, command, target, mutation = self._draw(draw, copy)
            yield from self._judge(kind, command, target, mutation, copy)
        finally:
            _remove(copy)

    def _draw(self, draw: random.Random, copy: Path) -> tuple[Kind, str, Path, str]:
        """A changed copy of the home folder, and the command that is to read it."""
        while True:
            _remove(copy)
            shutil.copytree(self.home, copy, symlinks=True)
            kind = draw.choices(KINDS, [kind.weight for kind in KINDS])[0]
            target = draw.choice(sorted(copy.glob(kind.files)))
            if draw.random() < 0.6 and target.is_file():
                mutation, change = draw.choice(sorted(CONTENTS.items()))
                try:
                    target.write_bytes(change(target.read_bytes(), draw))
                except Impossible:
                    continue
            else:
                mutation, shape = draw.choice(sorted(SHAPES.items()))
                try:
                    shape(target, copy, draw)
                except Impossible:
                    continue
            return kind, draw.choice(kind.commands), target, mutation

    def _judge(self, kind: Kind, command: str, target: Path, mutation: str, copy: Path) -> Iterator[str]:
        usual = self._find_usual(command)
        if mutation == BEHIND_A_LINK and any(target.is_relative_to(copy / place) for place in kind.writes):
            kind = replace(kind, writes=(*kind.writes, f"disk/{target.name}"))
        if target.is_symlink() and target.name in kind.writes and target.is_dir():  # the run is behind the user's link
            beside = (f"{target.readlink().name}/{path.name}" for path in (self.home / target.name).iterdir())
            kind = replace(kind, writes=(*kind.writes, *beside))
        before = _take_stock(copy, kind)
        ended = run_command(command, copy)
        name = target.relative_to(copy)
        problems = [
            *_find_problems(ended, usual, name),
            *(f"{path} was changed" for path in _find_changed(before, _take_stock(copy, kind), copy)),
        ]
        if problems:
            raise Failed(f"{mutation} {name}\nmonograph {command}\n{'; '.join(problems)}\n{ended.said[-4000:]}")
        yield ACCEPTED if ended.code == 0 else REFUSED_IN_WORDS
        yield mutation
        yield command.split()[0]

    def _find_usual(self, command: str) -> Ended:
        """The command with nothing changed; other processes of the fuzzer read it."""
        file = self.folder / f"usual-{hashlib.sha256(command.encode()).hexdigest()[:16]}.json"
        if command not in self.usual and file.exists():
            self.usual[command] = Ended(**json.loads(file.read_text()))
        if command not in self.usual:
            copy = self.folder / f"usual-{os.getpid()}"
            _remove(copy)
            shutil.copytree(self.home, copy, symlinks=True)
            ended = run_command(command, copy)
            if ended.code != 0:
                raise RuntimeError(f"monograph {command}\n{ended.said}")
            _remove(copy)
            self.usual[command] = ended
            write_whole(file, json.dumps(asdict(ended)))
        return self.usual[command]


def run_command(command: str, home: Path) -> Ended:
    """Run a command line in a child without rights, in the home folder."""
    output = home.parent / f"{home.name}.output"
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_child(command, home, output)
    status, usage = _wait(child, begin + HANGS_SECONDS)
    code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
    said = output.read_text(errors="backslashreplace")
    output.unlink()
    took = usage.ru_utime + usage.ru_stime
    return Ended(code, said, took, usage.ru_maxrss << 10, time.monotonic() - begin)


def _be_child(command: str, home: Path, output: Path) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", errors="backslashreplace") for stream in (1, 2))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(home)
    os.environ |= {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "COLUMNS": "400"}
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # a child that is forked cannot use it
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _drop_privileges()
    code = 99
    try:
        code = main(command.split())
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 98
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _drop_privileges() -> None:
    """Let permissions count for root as well: it keeps its files, and loses the rights to all others."""
    if os.geteuid() == 0:
        header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0), (ctypes.c_uint32 * 6)()
        if _LIBC.capset(header, nothing) != 0:
            raise OSError(ctypes.get_errno(), "capset")


def _wait(child: int, end: float) -> tuple[int, resource.struct_rusage]:
    while True:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return status, usage
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.005)


def _find_problems(ended: Ended, usual: Ended, name: Path) -> Iterator[str]:
    if ended.code not in (0, 1, 2):
        yield f"exit code {ended.code}" + (" (a hang)" if ended.waited > HANGS_SECONDS else "")
    if "Traceback (most recent call last)" in ended.said or "panicked" in ended.said:
        yield "a traceback"
    if any(character in ended.said for character in "\x1b\u202e\x07"):
        yield "terminal codes"
    if ended.code != 0:
        if "error:" not in ended.said:
            yield "no error in words"
        if not any(part in ended.said for part in name.parts):
            yield "the file is not named"
    if ended.seconds > usual.seconds + MORE_SECONDS:
        yield f"{ended.seconds:.1f} s of the processor, {usual.seconds:.1f} s otherwise"
    if ended.bytes > usual.bytes + MORE_BYTES:
        yield f"{ended.bytes >> 20} MiB, {usual.bytes >> 20} MiB otherwise"


def _take_stock(home: Path, kind: Kind) -> dict[str, str]:
    """Everything that the command may not change."""
    writes = (OUT, NEW, ".cache", ".config", *kind.writes)
    found = {}
    for path in sorted(home.rglob("*")):
        name = path.relative_to(home).as_posix()
        if not any(name == each or name.startswith((f"{each}/", f"{each}.", f".{each}.")) for each in writes):
            found[name] = digest(path)
    return found


def _find_changed(before: dict[str, str], after: dict[str, str], home: Path) -> list[str]:
    hidden = {name for name in after.keys() - before.keys() if Path(name).name.endswith(".lock")}
    return sorted(name for name in (before.keys() | after.keys()) - hidden if before.get(name) != after.get(name))


def _remove(folder: Path) -> None:
    if folder.exists():
        for path in folder.rglob("*"):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o700)
        shutil.rmtree(folder)


def check(seed: int, folder: Path) -> list[str]:
    """One seed in a folder that all seeds share."""
    if folder not in _FUZZERS:
        with contextlib.redirect_stdout(io.StringIO()):
            _FUZZERS[folder] = FileFuzzer(folder)
    return list(_FUZZERS[folder].check_seed(seed))


_FUZZERS: dict[Path, FileFuzzer] = {}

if __name__ == "__main__":
    run_fuzzer("tests.system.file_fuzz", check)
