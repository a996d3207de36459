"""Two agents on this host, as two nodes: started, killed and looked at by tests."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

from monograph.train.records import parse_record
from tests.kit.paced import find_processes, wait_until
from tests.launch.disk_faults import FILE_VARIABLE
from tests.test_launch import environment

FLAGS = {
    "training.global_batch_size": 12,
    "checkpoint.interval": 5,
    "checkpoint.load": "auto",
    "compile.mode": "eager",
    "parallelism.fsdp": "graph",
    "parallelism.timeout_seconds": 20,
    "debug.device": "cpu",
}
TAIL_BYTES = 1 << 16


def find_port():
    with socket.socket() as taken:
        taken.bind(("localhost", 0))
        return taken.getsockname()[1]


def is_listening(port):
    """Whether a process of this host answers at a port."""
    with socket.socket() as asking:
        return asking.connect_ex(("localhost", port)) == 0


def find_parent(pid):
    """The process that started another; 0 when it has ended."""
    try:
        return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


class Agents:
    """The agents of one job; each is one "node" of this host."""

    def __init__(self, folder: Path, *, nnodes="2", max_restarts=3, flags=None, variables=None):
        self.folder, self.nnodes, self.max_restarts = folder, nnodes, max_restarts
        self.variables = variables or {}
        self.flags, self.port = {**FLAGS, **(flags or {})}, find_port()
        self.agents, self.sizes, self.revived = {}, {}, 0
        self.disk_fault = folder.parent / "disk-fault.json"
        """The fault of a disk that is planned next (tests.launch.disk_faults)."""

    def start(self, name, ranks):
        """Start the agent of a node with this many ranks; the first one keeps the rendezvous store."""
        is_first = all(agent.poll() is not None for agent in self.agents.values())
        self.sizes[name] = ranks
        words = [word for path, value in self.flags.items() for word in (f"--{path}", str(value))]
        command = [sys.executable, "-m", "monograph.launch.agent", "--nnodes", self.nnodes]
        command += ["--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-id", "job"]
        command += ["--rdzv-endpoint", f"localhost:{self.port}", "--max-restarts", str(self.max_restarts)]
        command += ["--rdzv-conf", "last_call_timeout=5", "--log-dir", str(self.folder / "logs")]
        command += ["-m", "monograph", "train", "tests.kit.paced:paced", "--import", "tests.launch.journal"]
        command += ["--job.dump_folder", str(self.folder), *words]
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        output = (self.folder.parent / f"agent-{name}.txt").open("a")
        variables = environment() | {"LOGLEVEL": "INFO", FILE_VARIABLE: str(self.disk_fault)} | self.variables
        self.agents[name] = subprocess.Popen(command, stdout=output, stderr=output, env=variables)
        if is_first:
            wait_until(lambda: is_listening(self.port), 60, "the first agent's store")

    def find_ranks(self, name):
        """Pid by rank of the ranks that run on a node now."""
        agent = self.agents[name].pid
        found = {}
        for pid, rank in find_processes(str(self.folder)).items():
            if rank and find_parent(pid) == agent:
                found[int(rank)] = pid
        return found

    def lose(self, name):
        """End a node without a word: its ranks and its agent at once."""
        pids = [self.agents[name].pid, *self.find_ranks(name).values()]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agents.pop(name).wait()

    def revive(self):
        """Start agents again that ended with an error, as a scheduler does."""
        for name, agent in list(self.agents.items()):
            if agent.poll():
                self.revived += 1
                self.start(name, self.sizes[name])

    def find_last_step(self):
        """The last step in metrics.jsonl; only the end of the file is read, because this is asked often."""
        try:
            with (self.folder / "metrics.jsonl").open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                records = map(parse_record, file.read().split(b"\n"))
        except OSError:
            return 0
        return max((record["step"] for record in records if record is not None), default=0)

    def wait_for_step(self, step, seconds=180):
        """Wait until a step is done."""

        def is_there():
            ended = {name: agent.poll() for name, agent in self.agents.items()}
            assert any(code is None for code in ended.values()), self.read_output()
            return self.find_last_step() >= step

        wait_until(is_there, seconds, f"step {step}\n{self.read_output()[-3000:]}")

    def finish(self, seconds=300):
        """Exit codes of all agents."""
        try:
            return {name: agent.wait(timeout=seconds) for name, agent in self.agents.items()}
        finally:
            self.close()

    def close(self):
        """Leave nothing behind."""
        for pid in find_processes(str(self.folder)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def read_output(self):
        return "\n".join(path.read_text() for path in sorted(self.folder.parent.glob("agent-*.txt")))

    def read_journal(self):
        """Every update that was made, by step: (world, sorted samples) of the last time it was."""
        lines = [
            json.loads(line)
            for path in self.folder.parent.glob("journal-*.jsonl")
            for line in path.read_text().splitlines()
        ]
        by_step = defaultdict(list)
        for line in lines:
            by_step[line["step"]].append(line)
        found = {}
        for step, made in by_step.items():
            world = max(made, key=lambda line: line["time"])["world"]
            newest = {}
            for line in sorted(made, key=lambda line: line["time"]):
                newest[line["rank"]] = line
            ranks = [newest[rank] for rank in range(world)]
            assert {line["world"] for line in ranks} == {world}, (step, ranks)
            found[step] = (world, sorted(sample for line in ranks for sample in line["samples"]))
        return dict(sorted(found.items()))
