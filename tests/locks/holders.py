"""Processes that hold a lock, which tests may stop and kill; they start quickly, since nothing here needs torch."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

from monograph.locks.holder import Holder, this_process

ROOT = Path(__file__).parent.parent.parent

HOLD = """
import sys, time
from pathlib import Path
from monograph.errors import MonographError
from monograph.locks import lock_file
from monograph.locks.folder_lock import FolderLock
if "no-flock" in sys.argv:
    def refuse(*_):
        raise OSError(95, "no locks here")
    lock_file.fcntl.flock = refuse
lock = FolderLock(Path(sys.argv[1]))
try:
    lock.acquire()
except MonographError as error:
    sys.exit(f"refused: {error}")
"""
WAIT = HOLD + "print('held', flush=True)\nsys.stdin.read()\nlock.release()\n"
TRY = HOLD + "lock.release()\n"
FORK = (
    HOLD
    + """
import os
if os.fork() == 0:
    print("forked", os.getpid(), flush=True)
    time.sleep(60)
sys.stdin.read()
"""
)


def start(code: str, folder: Path, *words: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def hold(folder: Path, *words: str) -> subprocess.Popen:
    """A process that holds the lock of a folder until its standard input is closed."""
    process = start(WAIT, folder, *words)
    said = process.stdout.readline()
    assert said == "held\n", process.stderr.read()
    return process


def finish(process: subprocess.Popen) -> tuple[int, str]:
    """Let it go; its exit code and what it said."""
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def kill(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate(timeout=60)


def elsewhere(**changes: object) -> Holder:
    """A holder on another machine."""
    away = {"host": "elsewhere", "machine": "elsewhere/1/2", "pid": 4711, "token": "another"}
    return dataclasses.replace(this_process(), **(away | changes))


def write_lock(folder: Path, holder: Holder, *, age_seconds: float = 0.0) -> Path:
    """A lock file as `holder` would have left it, last refreshed so many seconds ago."""
    path = folder / ".lock"
    path.write_bytes(holder.render())
    when = time.time() - age_seconds
    os.utime(path, (when, when))
    return path
