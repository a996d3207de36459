"""From the launch to the first step, phase by phase, with agents of this host as nodes.

    python benchmarks/start_up_nodes.py [--nodes 1 8] [--recipe llama3_debugmodel] [--ranks-per-node 1] [--out FILE]

Every node is a real agent with its own ranks; they meet over torch's c10d rendezvous and gloo. The step comes from one
artifact in a shared folder, which the first rank of each node copies to the node's cache; with --capture, every rank
captures it instead. All nodes share the cores of this host, so times of many nodes are an upper limit: the seconds of
the processor say what one rank costs wherever it runs.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAUNCH, TOTAL, PROCESSOR = "launch to rank's process", "launch to first step", "processor, all ranks and agents"
_PHASE = re.compile(r"^\S+ I   (\S.*?)  +([0-9.]+) s$", flags=re.M)
QUIET = ["--metrics.progress", "off", "--validator.interval", "0", "--checkpoint.enabled", "false"]
SECONDS = 900


@dataclass
class StartUp:
    """One launch: seconds by phase and rank."""

    nodes: int
    by_phase: dict[str, list[float]] = field(default_factory=dict)


def find_port() -> int:
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return int(taken.getsockname()[1])


def run(words: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "monograph", *words], check=True, env=find_environment(), timeout=SECONDS)


def find_environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def launch(recipe: str, flags: Sequence[str], nodes: int, ranks: int, folder: Path) -> StartUp:
    """Start all agents at once, wait for their two steps, and read what each rank says about its start."""
    port, run_folder = find_port(), folder / f"run-{nodes}"
    command = [sys.executable, "-m", "monograph.launch.agent", "--nnodes", str(nodes), "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-id", "job", "--rdzv-endpoint", f"localhost:{port}"]
    command += ["-m", "monograph", "train", recipe, "--job.dump_folder", str(run_folder), *flags]
    before, begin = os.times(), time.time()
    with (folder / f"agents-{nodes}.txt").open("w") as output:
        agents = [subprocess.Popen(command, stdout=output, stderr=output, env=find_environment()) for _ in range(nodes)]
        codes = [agent.wait(timeout=SECONDS) for agent in agents]
    after = os.times()
    if any(codes):
        raise SystemExit(f"agents ended with {codes}:\n{(folder / f'agents-{nodes}.txt').read_text()[-3000:]}")
    found = StartUp(nodes)
    for rank in range(nodes * ranks):
        for name, seconds in _PHASE.findall((run_folder / "logs" / f"rank-{rank}.log").read_text()):
            found.by_phase.setdefault(name, []).append(float(seconds))
    started = json.loads((run_folder / "goodput.jsonl").read_text().splitlines()[0])["time"] - begin
    found.by_phase[LAUNCH] = [started]
    found.by_phase[TOTAL] = [started + seconds for seconds in found.by_phase["total"]]
    found.by_phase[PROCESSOR] = [
        after.children_user + after.children_system - before.children_user - before.children_system
    ]
    return found


def render(found: Sequence[StartUp], ranks: int) -> str:
    """The table, in Markdown: the median of all ranks, and the slowest."""
    lines = ["| phase, s | " + " | ".join(f"{each.nodes} x {ranks}" for each in found) + " |"]
    lines.append("|---|" + "---|" * len(found))
    phases = [name for name in found[-1].by_phase if name not in (LAUNCH, TOTAL, PROCESSOR, "total")]
    for name in (LAUNCH, *phases, TOTAL, PROCESSOR):
        cells = []
        for each in found:
            seconds = each.by_phase.get(name, [0.0])
            most = f" (slowest {max(seconds):.2f})" if len(seconds) > 1 else ""
            cells.append(f"{statistics.median(seconds):.2f}{most}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--ranks-per-node", type=int, default=1)
    parser.add_argument("--recipe", default="llama3_debugmodel")
    parser.add_argument("--capture", action="store_true", help="without an artifact")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    common = ["--debug.device", "cpu", "--training.steps", "2", "--lr_scheduler.warmup_steps", "0", *QUIET]
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for nodes in given.nodes:
            ranks, flags = nodes * given.ranks_per_node, list(common)
            if not given.capture:
                artifact = str(folder / f"artifact-{ranks}")
                run(["precompile", given.recipe, "--out", artifact, "--ranks", str(ranks), *common])
                flags += ["--compile.artifact", artifact, "--compile.artifact_cache", str(folder / "cache")]
            found.append(launch(given.recipe, flags, nodes, given.ranks_per_node, folder))
    text = render(found, given.ranks_per_node)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
