"""Start several ranks on this machine through torch's elastic launcher, and say which of them failed, and why.

Rank 0 keeps the terminal. What the others print goes to the run's folder; when ranks fail, each is named with its exit
code or signal, and the end of the first one's log is shown: that is the reason, and the other failures follow from it.
"""

import functools
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from monograph.compat.elastic import patient_agent, quiet_agent
from monograph.crash import STACKS_VARIABLE, describe_exit, find_reason
from monograph.errors import EXIT_FAILED, EXIT_WRONG_INPUT, ConfigError
from monograph.launch.follow import LAUNCHER_VARIABLE
from monograph.launch.local_rendezvous import local_rendezvous
from monograph.launch.stop_signals import TORCH_HANDLES, check_asked_once, passed_on
from monograph.log import set_up_log
from monograph.parallel.flight import FOLDER, describe_flights
from monograph.system.child_process import safe_import_path
from monograph.system.console import make_console
from monograph.train.command_line import RANKS_VARIABLE
from monograph.train.config import TrainerConfig
from monograph.train.folder import check_run_folder
from monograph.train.launch_logs import LaunchLogs
from monograph.train.signals import StoppedOnRequest

MAX_SECONDS_TO_STOP = 7 * 86400
_SECONDS_TO_FOLLOW = 20
"""Once one rank has failed, the launcher kills the others after 30 s; what was killed sooner was not killed by it."""


@dataclass(frozen=True)
class LaunchFailure:
    """How the ranks of a launch ended."""

    first: int
    """The rank whose failure made the others fail."""
    codes: Mapping[int, int]
    """Exit codes by rank, of those that did not end well."""

    @property
    def code(self) -> int:
        return self.codes[self.first]


def launch(words: list[str], ranks: int, config: TrainerConfig) -> int:
    """Run `monograph WORDS` on `ranks` local ranks; the exit code is that of the rank that failed first, or 0."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    os.environ[RANKS_VARIABLE], os.environ[LAUNCHER_VARIABLE] = str(ranks), str(os.getpid())
    os.environ.setdefault(STACKS_VARIABLE, "1")
    set_up_log(level=config.debug.log_level)
    if words[0] == "train":
        check_run_folder(config)
    folder = Path(config.job.dump_folder)
    label = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    staged = LaunchLogs(folder, label) if words[0] == "train" else None
    logs = staged.path if staged else folder / "logs"
    try:
        logs.mkdir(parents=True, exist_ok=True) if staged is None else staged.make()
    except OSError as error:
        raise ConfigError(
            f"job.dump_folder is {folder}", why=f"it cannot be written: {error}", do="choose another folder"
        ) from None
    begin = time.time()
    try:
        failure = _run_ranks(words, ranks, logs, label, seconds_to_stop=find_seconds_to_stop(config))
        if failure is None or failure.code == StoppedOnRequest.exit_code:
            return failure.code if failure else 0
        show_reason(failure, logs)
        for text in describe_flights(folder / FOLDER, since=begin):
            _print(text)
        kept = staged.settle(is_kept=failure.code != EXIT_WRONG_INPUT) if staged else logs
        if kept.exists():
            _print(f"the logs of all ranks are in {kept}")
        return 128 - failure.code if failure.code < 0 else failure.code
    finally:
        del os.environ[RANKS_VARIABLE], os.environ[LAUNCHER_VARIABLE]
        if staged is not None:
            staged.settle(is_kept=False)


def find_seconds_to_stop(config: TrainerConfig) -> int:
    """How long ranks may take to end after they were asked to: a step, the save under way, and one more.

    These have limits of their own, which end a rank that hangs in words; so the launcher never kills one that saves.
    """
    seconds = config.parallelism.timeout_seconds + 2 * config.checkpoint.timeout_seconds
    return math.ceil(min(seconds, MAX_SECONDS_TO_STOP))


def _run_ranks(words: list[str], ranks: int, logs: Path, label: str, *, seconds_to_stop: int) -> LaunchFailure | None:
    """Run the ranks to their end; None when all of them ended well."""
    make_settings = functools.partial(
        LaunchConfig,
        run_id=label,
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        max_restarts=0,
        monitor_interval=0.1,
        signals_to_handle=TORCH_HANDLES,
        logs_specs=DefaultLogsSpecs(
            log_dir=str(logs), redirects={local: Std.ALL for local in range(1, ranks)}, tee=Std.NONE
        ),
    )
    try:
        with (
            safe_import_path(),
            local_rendezvous() as meeting,
            passed_on() as heard,
            quiet_agent(),
            patient_agent(seconds_to_stop, heard) as ended,
        ):
            elastic_launch(make_settings(**meeting), sys.executable)("-m", "monograph", *words)
    except ChildFailedError as error:
        codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
        return LaunchFailure(find_first_failure(error.failures, ended), codes)
    except SignalException as stopped:
        check_asked_once(heard)
        for rank, path in _find_error_files(logs, label):
            if StoppedOnRequest.__name__ not in path.read_text(errors="replace"):
                return LaunchFailure(rank, {rank: EXIT_FAILED})
        raise StoppedOnRequest(f"{(heard or [stopped.sigval.name])[0]}: all ranks have stopped") from None
    return None


def find_first_failure(failures: Mapping[int, ProcessFailure], ended: Collection[int]) -> int:
    """The rank whose failure made the others fail.

    A rank that raised noted when, before it left the others alone. One that was killed noted nothing, and then the
    others' notes are about that; unless they are so old that it was the launcher who killed what was still running.
    Pids in `ended` are of ranks that had ended before the launcher did anything: it terminated none of them. Notes are
    compared with each other by the clock of their disk, and with the present by the clock of this machine.
    """
    notes = {rank: path.stat().st_mtime for rank, each in failures.items() if (path := Path(each.error_file)).exists()}
    silent = {rank: each.exitcode for rank, each in failures.items() if rank not in notes}
    is_late = bool(notes) and time.time() - min(failures[rank].timestamp for rank in notes) > _SECONDS_TO_FOLLOW
    told_to_end = {-signal.SIGTERM, -signal.SIGUSR1} | ({-signal.SIGKILL} if is_late else set())
    killed = [rank for rank, code in silent.items() if code not in told_to_end or failures[rank].pid in ended]
    if killed:  # a survivor that hangs in a collective is killed by the launcher, but later
        return min(killed, key=lambda rank: (failures[rank].timestamp, rank))
    return min(notes, key=lambda rank: notes[rank]) if notes else min(failures)


def _find_error_files(folder: Path, label: str) -> list[tuple[int, Path]]:
    """Rank and note of every rank of this launch that noted a failure, the earliest first."""
    found = folder.glob(f"{label}_*/attempt_0/*/error.json")
    return [(int(path.parent.name), path) for path in sorted(found, key=lambda path: path.stat().st_mtime_ns)]


def show_reason(failure: LaunchFailure, logs: Path) -> None:
    """Show why the first rank to fail did so and how the others ended."""
    first = failure.first
    if first > 0:
        reason = find_reason(_read_log(first, logs))
        end = ", and the end of its log is:" if any(line.strip() for line in reason) else ""
        _print(f"rank {first} {describe_exit(failure.code)}; it failed first{end}", style="red")
        for line in reason if end else []:
            _print(f"  {line}")
    else:
        _print(f"rank 0 {describe_exit(failure.code)}; it failed first, and its output is above", style="red")
    for rank in sorted(failure.codes.keys() - {first}):
        _print(f"rank {rank} {describe_exit(failure.codes[rank])}")


def _print(text: str, *, style: str = "") -> None:
    make_console(stderr=True).print(text, style=style or None)


def _read_log(rank: int, folder: Path) -> list[str]:
    """The lines that a rank of the latest launch wrote to standard error; names of launches begin with their time."""
    logs = sorted(folder.glob(f"*/attempt_0/{rank}/stderr.log"))
    return logs[-1].read_text(errors="replace").splitlines() if logs else []
