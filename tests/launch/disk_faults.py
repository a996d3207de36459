"""One fault of a disk inside of a save, planned by a test in a file and met by a rank of another process.

The rank takes the file away at the first such call and fails there, so a test knows when it has happened.
"""

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monograph.train.checkpoint.disk import Disk

FILE_VARIABLE = "MONOGRAPH_TEST_DISK_FAULT"
"""Where ranks look for the file."""
FIRST_RANK_CALLS = ("make_folder", "create", "write", "sync", "sync_folder", "rename")
OTHER_RANK_CALLS = ("create", "write", "sync", "sync_folder")
"""What a save calls."""
ERRORS = ("ENOSPC", "EIO", "EROFS")
KILL = "kill"


def plan_fault(path: Path, *, rank: int, call: str, what: str) -> None:
    """Let the next such call of a rank fail with an error of the system, or end the process there."""
    prepared = path.with_suffix(".new")
    prepared.write_text(json.dumps({"rank": rank, "call": call, "what": what}))
    prepared.rename(path)


def find_fault(call: str) -> str:
    """What is planned for this call on this rank, once; empty for nothing."""
    path = Path(os.environ[FILE_VARIABLE])
    try:
        planned = json.loads(path.read_text())
    except FileNotFoundError:
        return ""
    if (planned["rank"], planned["call"]) != (int(os.environ["RANK"]), call):
        return ""
    path.unlink()
    return planned["what"]


def make_faulty(call: str) -> Callable[..., Any]:
    """A call of a disk that fails where it is planned to."""
    real = getattr(Disk, call)

    def faulty(disk: Disk, *args: Any) -> Any:
        what = find_fault(call)
        if what == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if what:
            code = getattr(errno, what)
            raise OSError(code, os.strerror(code))
        return real(disk, *args)

    return faulty


def install() -> None:
    """Let every disk of this process fail as planned."""
    for call in FIRST_RANK_CALLS:
        setattr(Disk, call, make_faulty(call))
