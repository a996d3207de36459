"""One node's agent: torch's elastic launcher, with the exit codes that schedulers act on.

    python -P -m monograph.launch.agent --nnodes 2 --nproc-per-node 8 ... -m monograph train RECIPE ...

It takes torchrun's own arguments and starts ranks in the same way. torchrun itself ends with 1 whatever happened; this
ends with 75 when the ranks were asked to stop and have saved, else with the code of the rank that failed first. After a
failure it says what the collectives of all ranks were doing.
"""

import contextlib
import dataclasses
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from torch.distributed.run import config_from_args, get_args_parser

from monograph.compat.elastic import patient_agent
from monograph.crash import STACKS_VARIABLE, describe_exit
from monograph.errors import EXIT_FAILED, MonographError
from monograph.launch.agent_rendezvous import SECONDS_TO_MEET, agent_rendezvous
from monograph.launch.environment import STOP_VARIABLE
from monograph.launch.follow import LAUNCHER_VARIABLE
from monograph.launch.local import find_first_failure
from monograph.launch.local_rendezvous import local_rendezvous
from monograph.launch.stop_signals import TORCH_HANDLES, passed_on
from monograph.log import get_log, set_up_log
from monograph.parallel.flight import FOLDER, describe_flights
from monograph.parallel.meeting import OWN_ADDRESS_VARIABLE, STORE_VARIABLE
from monograph.system.child_process import safe_import_path
from monograph.system.console import make_console
from monograph.train.signals import StoppedOnRequest

log = get_log("agent")
_STOPPED = StoppedOnRequest.exit_code
SHUTDOWN_SECONDS = 3600
"""How long ranks may take to end after they were asked to, where the job file does not say. It is longer than their own
limits for a step and for files, which end them in words if they hang."""
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""With the store of the first rendezvous shared, torch (2.13) tells its address only once: a node that joins later, or
comes back, waits for it in vain. So every rendezvous has a store of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run this node's ranks until the job is over; returns an exit code."""
    try:
        return _run(arguments)
    except MonographError as error:
        make_console(stderr=True).print(f"{error.label}: {error}", style="red")
        return error.exit_code


def _run(arguments: Sequence[str] | None) -> int:
    for name in (STORE_VARIABLE, OWN_ADDRESS_VARIABLE):
        os.environ.pop(name, None)  # inherited from a rank or agent of another job
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault(STOP_VARIABLE, str(SHUTDOWN_SECONDS))
    os.environ.setdefault(STACKS_VARIABLE, "1")
    os.environ.setdefault(_OWN_STORE, "1")
    os.environ[LAUNCHER_VARIABLE] = str(os.getpid())
    set_up_log()
    given = get_args_parser().parse_args(arguments)
    config, command, words = config_from_args(given)
    config.signals_to_handle = TORCH_HANDLES
    seconds = int(os.environ[STOP_VARIABLE])
    config.rdzv_configs.setdefault("join_timeout", seconds + SECONDS_TO_MEET)
    folder = Path(given.log_dir) if given.log_dir else None
    begin, start = time.time(), read_file_clock(folder)
    try:
        with (
            safe_import_path(),
            _meeting(config) as settings,
            passed_on() as heard,
            patient_agent(seconds, heard) as ended,
        ):
            elastic_launch(dataclasses.replace(config, **settings), command)(*words)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        if set(codes.values()) == {_STOPPED}:
            return _STOPPED
        first = find_first_failure(error.failures, ended)
        log.error("rank %d failed first: it %s", first, describe_exit(codes[first]))
        _explain_hang(folder, since=begin)
        return 128 - codes[first] if codes[first] < 0 else codes[first]
    except SignalException as stopped:
        log.info("%s: the ranks of this node have ended", heard[0] if heard else stopped.sigval.name)
        if len(heard) > 1:
            log.error("they were ended at once by %s, and may have saved nothing", heard[-1])
            return 128 + signal.Signals[heard[-1]]
        failed = [path for path in find_last_notes(folder, since=start) if not is_of_a_stop(path)]
        return EXIT_FAILED if failed else _STOPPED
    return 0


@contextlib.contextmanager
def _meeting(config: LaunchConfig) -> Iterator[dict[str, Any]]:
    """Yield what replaces torch's c10d rendezvous: a file where there is one node, else a store on one interface."""
    if config.rdzv_backend != "c10d":
        yield {}
        return
    with (
        local_rendezvous()
        if config.max_nodes == 1
        else agent_rendezvous(config.rdzv_endpoint, config.local_addr) as settings
    ):
        yield settings


def read_file_clock(folder: Path | None) -> int:
    """The time in nanoseconds by the clock that dates files in a folder: a file server's may be minutes off."""
    if folder is None:
        return time.time_ns()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".clock-") as file:
        return os.fstat(file.fileno()).st_mtime_ns


def find_notes(folder: Path | None, *, since: int) -> list[Path]:
    """What ranks of this agent noted about how they failed."""
    found = folder.rglob("error.json") if folder is not None else []
    return [path for path in found if path.stat().st_mtime_ns >= since]


def find_last_notes(folder: Path | None, *, since: int) -> list[Path]:
    """Those of the last attempt: what earlier ones failed of is over. They lie in attempt_N/RANK."""
    notes = find_notes(folder, since=since)
    attempts = {path: int(path.parts[-3].rpartition("_")[2] or 0) for path in notes if len(path.parts) > 2}
    return [path for path, attempt in attempts.items() if attempt == max(attempts.values())]


def is_of_a_stop(path: Path) -> bool:
    """Whether a rank noted that it was asked to stop; a note that another node replaces just now says nothing."""
    try:
        return StoppedOnRequest.__name__ in path.read_text(errors="replace")
    except FileNotFoundError:
        return True


def _explain_hang(folder: Path | None, *, since: float) -> None:
    """Say what the ranks' collectives were doing; `folder` is `logs` of the run's folder, as job files write it."""
    if folder is not None:
        for line in describe_flights(folder.parent / FOLDER, since=since):
            log.error("%s", line)


if __name__ == "__main__":
    sys.exit(main())
