"""Several ranks on one device: bits, verify, expert overlap, artifacts, and what a kill or a stopped rank leads to.

    python benchmarks/multi_rank.py [--device cuda] [--meshes dp2 ...] [--only matrix|faults] [--ways pipeline ...]

With a GPU all ranks share it over NCCL, which needs NCCL 2.30 or newer and NCCL_MULTI_RANK_GPU_ENABLE=1. The matrix
runs in one set of 4 processes; families, meshes and checks are combined pairwise. Faults start real launches: a rank
is killed (the others must end soon, and a resumed run must have the bits of an unbroken one) or stopped (the others
must end within the timeout), op by op and as one CUDA graph, and of two pipeline stages.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.multi_rank_work import DEEPSEEK, LLAMA, MESHES, QWEN, Case, check_mesh, make_artifact
from tests.kit.ranks import pool

PAIRWISE = {
    "dp2": ("verify " + QWEN, "artifact " + LLAMA),
    "tp2": ("verify " + LLAMA, "artifact " + DEEPSEEK),
    "ep2": ("verify " + DEEPSEEK, "overlap " + QWEN, "artifact " + QWEN),
    "dp2 tp2 ep2": ("verify " + QWEN, "verify " + DEEPSEEK, "overlap " + DEEPSEEK, "artifact " + QWEN),
    "hsdp 2x2": ("verify " + LLAMA, "artifact " + DEEPSEEK),
    "cp2": ("verify " + LLAMA, "verify " + DEEPSEEK, "artifact " + LLAMA),
    "cp2 ulysses": ("verify " + LLAMA, "verify " + DEEPSEEK),
    "cp2 latent": ("verify " + DEEPSEEK, "artifact " + DEEPSEEK),
    "cp2 tp2": ("verify " + LLAMA, "verify " + DEEPSEEK),
}
TIMEOUT_SECONDS = 10
"""Of collectives in the fault cases."""
GRACE_SECONDS = 120
"""What tearing down may take beyond the timeout: NCCL's watchdog waits up to 60 s for a dump before it ends a process,
and the launcher gives a rank that does not react 30 s."""
LAUNCH_SECONDS = 240
"""What an unbroken launch may take while others share the device."""
STEPS, BROKEN_AFTER = 240, 60


def plan_cases(mesh: str) -> list[Case]:
    """Bits for every family that the mesh serves; each other check for some."""
    families = {"ep2": (QWEN, DEEPSEEK), "cp2 latent": (DEEPSEEK,)}.get(mesh, (LLAMA, QWEN, DEEPSEEK))
    bits = [Case("bits", recipe) for recipe in families if recipe != LLAMA or "ep2" not in mesh]
    return bits + [Case(*words.split()) for words in PAIRWISE[mesh]]


def run_matrix(meshes: Sequence[str], device: str) -> list[tuple[str, bool, float, str]]:
    """Rows of name, whether it passed, seconds and a remark."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for mesh in meshes:
            cases = plan_cases(mesh)
            for case in cases:
                if case.check == "artifact":
                    pool.run(1, make_artifact, case.recipe, mesh, device, folder, timeout_seconds=300.0)
            answers = pool.run(MESHES[mesh][0], check_mesh, mesh, device, folder, cases, timeout_seconds=600.0)
            for case, outcomes in zip(cases, zip(*answers, strict=True), strict=True):
                problem = next((each.problem for each in outcomes if each.problem), "")
                row = (
                    f"{case.check} {case.recipe} {mesh}",
                    not problem,
                    outcomes[0].seconds,
                    problem or outcomes[0].note,
                )
                rows.append(row)
                show(*row)
    return rows


class Launch:
    """`monograph train --ranks 2`, watched while it runs."""

    def __init__(self, folder: Path, device: str, words: Sequence[str]) -> None:
        self.folder = folder
        fixed = (
            f"--training.steps {STEPS} --training.seq_len 64 --model.n_layers 2 --lr_scheduler.decay constant"
            f" --debug.device {device} --debug.deterministic true --parallelism.fsdp graph"
            f" --parallelism.timeout_seconds {TIMEOUT_SECONDS} --checkpoint.interval 40 --validator.interval 0"
            f" --metrics.progress lines --job.dump_folder {folder}"
        )
        command = [sys.executable, "-m", "monograph", "train", LLAMA, "--ranks", "2", *fixed.split(), *words]
        folder.parent.mkdir(parents=True, exist_ok=True)
        self.log = (folder.parent / f"{folder.name}.txt").open("a")
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def losses(self) -> dict[int, tuple[float, float]]:
        """Step -> loss and gradient norm, of the steps written so far."""
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        records = [json.loads(line) for line in lines if line.endswith("}")]
        return {record["step"]: (record["loss"], record["grad_norm"]) for record in records if "loss" in record}

    def wait_for_step(self, step: int, seconds: float = 150.0) -> None:
        """Until this step was written."""
        end = time.monotonic() + seconds
        while step not in self.losses():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"step {step} was not reached: {Path(self.log.name).read_text()[-2000:]}")
            time.sleep(0.02)

    def ranks(self) -> list[int]:
        """The process ids of the ranks."""
        found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(self.process.pid)], capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]

    def finish(self, seconds: float) -> int:
        """The exit code; everything is killed when it takes longer."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            raise RuntimeError(
                f"still running after {seconds:.0f} s: {Path(self.log.name).read_text()[-2000:]}"
            ) from None
        finally:
            self.log.close()


PIPELINE = ["--parallelism.pipeline_parallel_degree", "2", "--training.global_batch_size", "16"]
WAYS = {
    "eager": ["--compile.mode", "eager"],
    "graph": ["--compile.cuda_graph", "off"],
    "CUDA graph": ["--compile.cuda_graph", "require"],
    "pipeline": ["--compile.cuda_graph", "off", *PIPELINE],
    "pipeline of CUDA graphs": ["--compile.cuda_graph", "require", *PIPELINE],
}
"""How ranks run that are killed and stopped."""


def run_faults(device: str, chosen: Sequence[str]) -> list[tuple[str, bool, float, str]]:
    """Kill and stop a rank, op by op and (on a GPU) as one CUDA graph."""
    ways = {way: WAYS[way] for way in chosen if device == "cuda" or "CUDA" not in way}
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(len(ways)) as threads:

        def check(way: str) -> list[tuple[str, bool, float, str]]:
            return check_faults(way, ways[way], Path(name) / way.replace(" ", "-"), device)

        return [row for rows in threads.map(check, ways) for row in rows]


def check_faults(way: str, words: Sequence[str], folder: Path, device: str) -> list[tuple[str, bool, float, str]]:
    """An unbroken run, then both faults."""
    rows = []
    whole = Launch(folder / "whole", device, words)
    assert whole.finish(LAUNCH_SECONDS) == 0, Path(whole.log.name).read_text()[-2000:]
    for fault in (signal.SIGKILL, signal.SIGSTOP):
        start = time.monotonic()
        try:
            passed, text = break_rank(folder / fault.name, device, words, fault, whole.losses())
        except RuntimeError as error:
            passed, text = False, str(error)
        rows.append((f"{fault.name} of a rank, {way}", passed, time.monotonic() - start, text))
        show(*rows[-1])
    return rows


def break_rank(
    folder: Path, device: str, words: Sequence[str], fault: signal.Signals, expected: dict[int, tuple[float, float]]
) -> tuple[bool, str]:
    """Send a signal to rank 1 in mid-run; the launch must end by itself, and a resumed run must have the same bits."""
    run = Launch(folder, device, words)
    run.wait_for_step(BROKEN_AFTER)
    pids = run.ranks()
    sent = time.monotonic()
    os.kill(pids[1], fault)
    try:
        code = run.finish(TIMEOUT_SECONDS + GRACE_SECONDS)
    finally:
        if fault is signal.SIGSTOP:
            subprocess.run(["kill", "-9", str(pids[1])], capture_output=True)
    ended = time.monotonic() - sent
    if code == 0:
        return False, "the launch ended as if nothing had happened"
    said = Path(run.log.name).read_text().strip().splitlines()
    reasons = [line.strip() for line in said if "failed first" in line] or [line for line in said if "error:" in line]
    reason = (reasons or said[-1:])[0].partition(";")[0]
    resumed = Launch(folder, device, [*words, "--checkpoint.load", "auto"])
    if resumed.finish(LAUNCH_SECONDS) != 0:
        return False, f"ended after {ended:.1f} s, but does not resume: {Path(resumed.log.name).read_text()[-1500:]}"
    different = [step for step, values in resumed.losses().items() if values != expected[step]]
    if different or resumed.losses().keys() != expected.keys():
        return False, f"the resumed run differs from the unbroken one in steps {different[:5]}"
    return True, f"ended after {ended:.1f} s, exit code {code} ({reason[:90]}); resumed bitwise"


def show(name: str, passed: bool, seconds: float, text: str) -> None:
    """One line of the table."""
    print(f"{'ok  ' if passed else 'FAIL'} {name:48s} {seconds:6.1f} s  {text}", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Print the table; 1 when anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--meshes", nargs="+", default=list(MESHES), choices=list(MESHES))
    parser.add_argument("--only", choices=["matrix", "faults"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS), help="of faults")
    options = parser.parse_args(words)
    start = time.monotonic()
    rows = [] if options.only == "faults" else run_matrix(options.meshes, options.device)
    rows += [] if options.only == "matrix" else run_faults(options.device, options.ways)
    failed = sum(not passed for _, passed, _, _ in rows)
    print(f"\n{len(rows) - failed} of {len(rows)} passed in {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
