"""Start several ranks on this machine through torch's elastic launcher, and say which of them failed, and why.

Rank 0 keeps the terminal. What the others print goes to the run's folder; when a rank fails, the end of its output is
shown, since that is the reason and everything the other ranks say is a consequence.
"""

import os
import signal
import sys
import time
from pathlib import Path

from rich.console import Console
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from monograph.log import set_up_log
from monograph.train.config import TrainerConfig
from monograph.train.folder import make_room
from monograph.train.signals import StoppedOnRequest

_SHOWN_LINES = 40


def launch(words: list[str], ranks: int, config: TrainerConfig) -> int:
    """Run `monograph WORDS` on `ranks` local ranks; the exit code is that of the rank that failed first, or 0."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // ranks)))
    set_up_log(level=config.debug.log_level)
    if words[0] == "train" and not config.checkpoint.load:
        make_room(Path(config.job.dump_folder))  # before the logs of the new run go there
    folder = Path(config.job.dump_folder) / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    settings = LaunchConfig(
        run_id=time.strftime("%Y%m%d-%H%M%S"),
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(
            log_dir=str(folder), redirects={local: Std.ALL for local in range(1, ranks)}, tee=Std.NONE
        ),
    )
    try:
        elastic_launch(settings, sys.executable)("-m", "monograph", *words)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _explain(rank, failure, folder)
    except SignalException as stopped:
        raise StoppedOnRequest(f"{stopped.sigval.name}: all ranks were told to stop") from None
    return 0


def _explain(rank: int, failure: ProcessFailure, folder: Path) -> int:
    """Show why the first rank to fail did so, and return its exit code."""
    console = Console(stderr=True)
    code = failure.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    if rank > 0:
        outputs = sorted(folder.glob(f"*/attempt_0/{rank}/stderr.log"), key=lambda path: path.stat().st_mtime)
        tail = outputs[-1].read_text(errors="replace").splitlines()[-_SHOWN_LINES:] if outputs else []
        console.print(f"[red]rank {rank} failed first: it {how}[/red]; the last it said:", highlight=False)
        for line in tail:
            console.print(f"  {line}", markup=False, highlight=False)
    elif code not in (0, StoppedOnRequest.exit_code):
        console.print(f"[red]rank 0 failed first: it {how}[/red]", highlight=False)
    console.print(f"what every rank said is in {folder}", highlight=False)
    return 128 - code if code < 0 else code
