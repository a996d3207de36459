"""Many short runs of 4 ranks on a busy machine; ranks are stopped and continued at random, and gloo's threads run late.

    python benchmarks/soak.py --runs 300 --load 2 --jitter --seed 0 [--first 0] [--at-once 2] [--python PYTHON]
        [--out FILE]

Start-up, two or three steps and shutdown, over and over, each time in new processes: what is looked for are crashes and
hangs that show once in a hundred runs. Runs of one kind must also print the same losses, bit for bit. The folder of a
run that failed stays, with the output of every rank; the exit code is 1 if there was one.
"""

import argparse
import contextlib
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

RANKS = 4
MOE = "qwen3_debugmodel_moe"
SMALL = {
    "model.n_layers": "1",
    "model.dim": "32",
    "model.vocab_size": "264",
    "training.seq_len": "16",
    "training.compute_dtype": "float32",
    "lr_scheduler.warmup_steps": "1",
    "metrics.progress": "off",
    "validator.interval": "0",
    "debug.device": "cpu",
    "parallelism.timeout_seconds": "60",
}
SPREAD = {"parallelism.tensor_parallel_degree": "2", "parallelism.expert_parallel_degree": "2"}
CHUNKED = {
    "compile.mode": "graph",
    "compile.expert_overlap.strategy": "graph",
    "parallelism.expert_parallel_degree": "4",
    "training.local_batch_size": "4",
}
KINDS: dict[str, tuple[str, str, dict[str, str]]] = {
    "graph, dp2 tp2 ep2": ("train", MOE, {**SPREAD, "compile.mode": "graph"}),
    "eager, dp2 tp2 ep2": ("train", MOE, {**SPREAD, "compile.mode": "eager"}),
    "graph, chunked experts, ep4": ("train", MOE, CHUNKED),
    "eager, hsdp 2x2, saved checkpoint": (
        "train",
        "llama3_debugmodel",
        {
            "compile.mode": "eager",
            "parallelism.data_parallel_replicate_degree": "2",
            "checkpoint.enabled": "true",
        },
    ),
    "verify, tp2 etp2": ("verify", MOE, {**SPREAD, "parallelism.expert_tensor_parallel_degree": "2"}),
}
"""Name -> command, recipe and flags."""
HANGS_AFTER_SECONDS = 300.0
LONGEST_PAUSE_SECONDS = 1.5
BURSTS = """
import random, time
while True:
    end = time.time() + 3 * random.random()
    while time.time() < end:
        pass
    time.sleep(random.random())
"""
LAST_IN_LINE = 19
"""The largest nice value."""


@dataclass(frozen=True)
class Task:
    """One run: everything about it follows from the soak's seed and its number."""

    number: int
    kind: str
    steps: int
    seed: int


@dataclass(frozen=True)
class Done:
    """How a run ended; an empty `problem` is a run that ended well."""

    task: Task
    seconds: float
    pauses: int
    losses: tuple[float, ...]
    problem: str = ""
    folder: str = ""


def plan_tasks(count: int, seed: int) -> list[Task]:
    """The runs of a soak: every kind in turn, two or three steps."""
    pick = random.Random(seed)
    kinds = list(KINDS)
    return [
        Task(number, kinds[number % len(kinds)], pick.choice((2, 3)), pick.randrange(1 << 30))
        for number in range(count)
    ]


def find_words(task: Task, folder: Path) -> list[str]:
    """The command line of a run."""
    what, recipe, flags = KINDS[task.kind]
    mine = {"job.dump_folder": str(folder / "run"), "training.steps": str(task.steps)}
    given = {**SMALL, "checkpoint.enabled": "false", **flags, **mine}
    return [
        what,
        recipe,
        "--ranks",
        str(RANKS),
        *(word for name, value in given.items() for word in (f"--{name}", value)),
    ]


def run(task: Task, root: Path, python: str, *, has_jitter: bool) -> Done:
    """Start one run, disturb it, wait for its end and read what it left."""
    folder = root / f"run-{task.number:04d}"
    folder.mkdir()
    keep = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    start = time.monotonic()
    with (folder / "output.log").open("w") as output:
        process = subprocess.Popen(
            [python, "-m", "monograph", *find_words(task, folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=keep | {"OMP_NUM_THREADS": "1"},
        )
        pauses = watch(process, random.Random(task.seed), has_jitter=has_jitter)
    seconds = time.monotonic() - start
    losses = read_losses(folder / "run" / "metrics.jsonl")
    problem = find_problem(task, process.returncode, losses, seconds)
    if problem:
        (folder / "command.txt").write_text(" ".join(["monograph", *find_words(task, folder)]) + "\n")
        return Done(task, seconds, pauses, losses, problem, str(folder))
    shutil.rmtree(folder)
    return Done(task, seconds, pauses, losses)


def find_problem(task: Task, code: int, losses: tuple[float, ...], seconds: float) -> str:
    """What is wrong with a run that has ended."""
    if seconds > HANGS_AFTER_SECONDS:
        return f"it did not end within {HANGS_AFTER_SECONDS:.0f} s"
    if code:
        return f"exit code {code}"
    if KINDS[task.kind][0] == "train" and len(losses) != task.steps:
        return f"{len(losses)} of {task.steps} steps in metrics.jsonl"
    return ""


def watch(process: subprocess.Popen[bytes], pick: random.Random, *, has_jitter: bool) -> int:
    """Wait for the end; meanwhile stop ranks for a moment, now this one, now that one. How often that was done."""
    end, pauses = time.monotonic() + HANGS_AFTER_SECONDS, 0
    while process.poll() is None:
        if time.monotonic() > end:
            kill_all(process)
            break
        time.sleep(pick.uniform(0.05, 1.5))
        ranks = find_children(process.pid) if has_jitter else []
        if ranks:
            slow_threads(ranks[0 : len(ranks) : 2])
            pauses += pause(pick.choice(ranks), pick.uniform(0.01, 1.0) ** 3 * LONGEST_PAUSE_SECONDS)
    process.wait()
    return pauses


def pause(pid: int, seconds: float) -> bool:
    """Stop a process and let it go on; False when it had ended."""
    try:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return False
    return True


def slow_threads(ranks: Sequence[int]) -> None:
    """Let gloo's threads in these ranks run after everybody else: what they do after a collective comes late."""
    for pid in ranks:
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                if "gloo_runloop" in (task / "comm").read_text():
                    os.setpriority(os.PRIO_PROCESS, int(task.name), LAST_IN_LINE)


def find_children(parent: int) -> list[int]:
    """The ranks of a launcher."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it ended while we looked
            if int(stat[1]) == parent and stat[0] != "Z":
                found.append(int(entry.name))
    return sorted(found)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """A run that hangs: its ranks print their stacks (SIGABRT) before everything ends."""
    for pid in find_children(process.pid):
        os.kill(pid, signal.SIGABRT)
    time.sleep(2)
    process.kill()


def read_losses(path: Path) -> tuple[float, ...]:
    """The losses of a run, exactly as computed; none for a run that trained nothing."""
    if not path.exists():
        return ()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return tuple(record["loss"] for record in records if "loss" in record)


def find_odd(done: list[Done]) -> list[str]:
    """Runs whose losses are not those of the first run of their kind, step by step."""
    first: dict[str, tuple[float, ...]] = {}
    odd = []
    for each in done:
        if not each.problem and each.losses:
            known = first.setdefault(each.task.kind, each.losses)
            if any(one != other for one, other in zip(known, each.losses, strict=False)):
                odd.append(f"run {each.task.number} ({each.task.kind}): losses {each.losses}, others had {known}")
            if len(each.losses) > len(known):
                first[each.task.kind] = each.losses
    return odd


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that only compute, in bursts."""
    started = [subprocess.Popen([sys.executable, "-c", BURSTS]) for _ in range(count)]
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.wait()


def make_table(done: list[Done]) -> list[str]:
    """One line for each kind of run."""
    lines = ["| kind | runs | ended well | pauses | median s | longest s |", "|---|---|---|---|---|---|"]
    for kind in KINDS:
        mine = [each for each in done if each.task.kind == kind]
        if mine:
            times = sorted(each.seconds for each in mine)
            well, pauses = sum(not each.problem for each in mine), sum(each.pauses for each in mine)
            numbers = (len(mine), well, pauses, f"{times[len(times) // 2]:.0f}", f"{times[-1]:.0f}")
            lines.append(f"| {kind} | {' | '.join(map(str, numbers))} |")
    return lines


def soak(tasks: list[Task], root: Path, options: argparse.Namespace) -> list[Done]:
    """All runs, some of them at once; each is reported as it ends."""
    said = threading.Lock()

    def one(task: Task) -> Done:
        found = run(task, root, options.python, has_jitter=options.jitter)
        with said:
            what = f"FAILED: {found.problem}; see {found.folder}" if found.problem else "ok"
            print(f"run {task.number}: {task.kind}, {found.seconds:.0f} s, {found.pauses} pauses: {what}", flush=True)
        return found

    with busy(options.load), ThreadPoolExecutor(options.at_once) as threads:
        return list(threads.map(one, tasks))


def report(done: list[Done], seconds: float, options: argparse.Namespace) -> tuple[list[str], bool]:
    """The table, the sum, and every run that failed or computed something else; whether all ended well."""
    version = subprocess.run(
        [options.python, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    failed, odd = [each for each in done if each.problem], find_odd(done)
    jitter = "jitter" if options.jitter else "no jitter"
    lines = [
        *make_table(done),
        "",
        f"{len(done) - len(failed)} of {len(done)} runs of {RANKS} ranks ended well in {seconds:.0f} s",
        f"torch {version}, {platform.machine()}, {os.cpu_count()} cores; load {options.load}, {jitter}, "
        f"{options.at_once} at once, seed {options.seed}",
        *(f"run {each.task.number} ({each.task.kind}): {each.problem}; kept in {each.folder}" for each in failed),
        *odd,
    ]
    return lines, not failed and not odd


def main() -> None:
    """Run the soak and print its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0, help="the number to begin with: a soak can be run in parts")
    parser.add_argument("--at-once", type=int, default=1, help="runs that go on side by side")
    parser.add_argument("--load", type=int, default=0, help="processes that only compute, beside the runs")
    parser.add_argument("--jitter", action="store_true", help="stop and continue random ranks, slow gloo's threads")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the runs")
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    root, start = Path(tempfile.mkdtemp(prefix="soak-")), time.monotonic()
    done = soak(plan_tasks(options.runs, options.seed)[options.first :], root, options)
    lines, is_well = report(done, time.monotonic() - start, options)
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if not is_well:
        raise SystemExit(1)
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
