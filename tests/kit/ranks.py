"""Ranks for tests: one pool of processes that live as long as the test session, since importing torch costs seconds.

    from tests.kit.ranks import pool
    losses = pool.run(4, train_briefly, config)    # one result per rank, or the exception of the rank that failed first

The function must be importable (module level). It runs with RANK, WORLD_SIZE and their like set, as under a launcher,
and joins its own process group (`monograph.parallel.groups.joined_groups`); what it joined it must leave again.
"""

import atexit
import faulthandler
import gc
import importlib
import os
import pickle
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from monograph.crash import describe_exit
from tests.kit.preloaded import FORKS

MOST_RANKS = 8
GRACE_SECONDS = 10.0
"""How long the others may take once one rank has failed: a closed connection ends them in milliseconds."""
GARBAGE_THRESHOLD = 50_000
"""Objects that Python makes before it looks for garbage, in tests and their ranks; by itself it looks after 700."""


class RankDied(Exception):
    """A rank's process ended without an answer."""

    late: tuple[int, ...] = ()
    """Ranks that were still running when the pool gave up on them."""


class RanksTimedOut(Exception):
    """Some ranks did not answer in time; the pool has been rebuilt."""


class RemoteTraceback(Exception):
    """What the rank itself saw, as the cause of the exception that is raised here."""


@dataclass(frozen=True)
class Answer:
    """What one rank sends back: a result, or an exception with the time it was raised at."""

    result: Any = None
    error: BaseException | None = None
    text: str = ""
    at: int = 0


@dataclass
class Worker:
    process: BaseProcess
    pipe: Connection
    stacks: Path
    """Where it prints the stacks of its threads on a fatal signal."""


class RankPool:
    """Processes 0 .. n - 1, started when first needed and reused by every test that needs ranks."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        self._failures = Path(tempfile.mkdtemp(prefix="ranks-"))

    def run(self, count: int, function: Callable[..., Any], *args: Any, timeout_seconds: float = 120.0) -> list[Any]:
        """`function(*args)` on ranks 0 .. count - 1 of a world of their own."""
        assert 1 <= count <= MOST_RANKS, f"{count} ranks"
        self._grow(count)
        workers = self._workers[:count]
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # a new rendezvous for each task
        for rank, worker in enumerate(workers):
            environment = self._environment(rank, count, store.port)
            _send(worker.pipe, (f"{function.__module__}:{function.__qualname__}", args, environment))
        answers = self._collect(workers, time.monotonic() + timeout_seconds)
        failed = [(rank, answer) for rank, answer in enumerate(answers) if answer is None or answer.error is not None]
        if any(answer is None or isinstance(answer.error, RankDied) for answer in answers):
            self.close()
        if failed:
            _raise_first(failed, count, timeout_seconds)
        return [answer.result for answer in answers if answer is not None]

    def close(self) -> None:
        """End all processes; the next `run` starts new ones."""
        for worker in self._workers:
            worker.pipe.close()
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
        self._workers = []

    def leave(self) -> None:
        """At the end of the session."""
        self.close()
        shutil.rmtree(self._failures, ignore_errors=True)

    def _grow(self, count: int) -> None:
        if any(not worker.process.is_alive() for worker in self._workers):
            self.close()
        os.environ["OMP_NUM_THREADS"] = "1"
        while len(self._workers) < count:
            ours, theirs = FORKS.Pipe()
            stacks = self._failures / f"stacks-{len(self._workers)}.txt"
            args, name = (theirs, stacks), f"rank-{len(self._workers)}"
            process = FORKS.Process(target=serve, args=args, daemon=True, name=name)
            process.start()
            theirs.close()
            self._workers.append(Worker(process, ours, stacks))

    def _environment(self, rank: int, count: int, port: int) -> dict[str, str]:
        """What a launcher would set."""
        failure = self._failures / f"rank-{rank}.json"
        failure.unlink(missing_ok=True)
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_ERROR_FILE": str(failure),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }

    def _collect(self, workers: list[Worker], deadline: float) -> list[Answer | None]:
        """Every rank's answer; None from those that are late."""
        answers: dict[int, Answer] = {}
        while len(answers) < len(workers) and (left := deadline - time.monotonic()) > 0:
            open_pipes = [worker.pipe for rank, worker in enumerate(workers) if rank not in answers]
            for pipe in wait(open_pipes, timeout=left):
                rank = next(rank for rank, worker in enumerate(workers) if worker.pipe is pipe)
                answers[rank] = _receive(workers[rank], rank)
                if answers[rank].error is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        return [answers.get(rank) for rank in range(len(workers))]


def _raise_first(failed: list[tuple[int, Answer | None]], count: int, timeout_seconds: float) -> None:
    """A dead rank explains everything; else the earliest exception does; else it was the time."""
    with_error = [(rank, answer) for rank, answer in failed if answer is not None and answer.error is not None]
    if not with_error:
        late = [rank for rank, _ in failed]
        raise RanksTimedOut(f"ranks {late} of {count} did not answer within {timeout_seconds:.0f} s")
    rank, first = min(with_error, key=lambda each: (not isinstance(each[1].error, RankDied), each[1].at))
    assert first.error is not None
    if isinstance(first.error, RankDied):
        first.error.late = tuple(each for each, reply in failed if reply is None)
    raise first.error from RemoteTraceback(f"rank {rank} of {count}:\n{first.text}")


def _send(pipe: Connection, message: Any) -> None:
    """Plain pickle: torch's own way through shared memory would tie a tensor to the process that made it."""
    pipe.send_bytes(pickle.dumps(message))


def _receive(worker: Worker, rank: int) -> Answer:
    try:
        return pickle.loads(worker.pipe.recv_bytes())
    except (EOFError, OSError):
        worker.process.join(timeout=5)
        code = worker.process.exitcode
        how = "closed its pipe" if code is None else describe_exit(code)
        stacks = worker.stacks.read_text(errors="replace") if worker.stacks.exists() else ""
        return Answer(error=RankDied(f"rank {rank} {how}\n{stacks}".strip()))


def serve(pipe: Connection, stacks: Path) -> None:
    """A rank's whole life: run what it is sent until the test session is gone."""
    torch.set_num_threads(1)
    gc.set_threshold(GARBAGE_THRESHOLD, 20, 20)
    faulthandler.enable(stacks.open("w"))
    while True:
        try:
            reference, args, environment = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        os.environ.update(environment)
        _send_back(pipe, answer(reference, args))


def answer(reference: str, args: tuple[Any, ...]) -> Answer:
    """Run one function and look whether it left the process as it found it."""
    try:
        module, _, name = reference.partition(":")
        result = getattr(importlib.import_module(module), name)(*args)
        check_left_clean()
        return Answer(result=result)
    except BaseException as error:
        if dist.is_initialized():
            dist.destroy_process_group()
        return Answer(error=error, text=traceback.format_exc(), at=find_failure_time())


def find_failure_time() -> int:
    """When this rank failed: it notes that before it leaves its groups, which makes the others fail as well."""
    noted = Path(os.environ["TORCHELASTIC_ERROR_FILE"])
    return noted.stat().st_mtime_ns if noted.exists() else time.time_ns()


def check_left_clean() -> None:
    """A group left behind would serve the next test with the last one's ranks."""
    if dist.is_initialized():
        raise AssertionError("the task left its process group behind")


def _send_back(pipe: Connection, reply: Answer) -> None:
    try:
        message = pickle.dumps(reply)
        pickle.loads(message)
    except Exception as problem:
        what = reply.text or f"its result cannot be sent: {problem}"
        message = pickle.dumps(Answer(error=RuntimeError(what), text=what, at=reply.at))
    pipe.send_bytes(message)


pool = RankPool()
"""The pool of this test session."""
atexit.register(pool.leave)
