"""A child process that is watched: whatever it does to files, processes, modules or sockets is seen.

Python's own audit events show what Python code does. A filter in the kernel ends the child at the first system call
that writes a file, starts a program or opens a socket, whoever makes it: C++ code raises no audit events. A watched
folder shows who reads the files in it.
"""

import ctypes
import errno
import json
import os
import platform
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_LIBC = ctypes.CDLL(None, use_errno=True)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CLONE_THREAD = 0x00010000
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_ARCHITECTURES: dict[str, tuple[int, dict[str, int], tuple[int, ...]]] = {
    "aarch64": (
        0xC00000B7,
        {"openat": 56, "clone": 220, "clone3": 435},
        (33, 34, 35, 36, 37, 38, 45, 46, 52, 53, 198, 199, 200, 203, 221, 276, 281, 425, 437),
    ),
    "x86_64": (
        0xC000003E,
        {"openat": 257, "clone": 56, "clone3": 435, "open": 2},
        (
            *(41, 42, 49, 53, 57, 58, 59, 76, 77, 82, 83, 84, 85, 86, 87, 88, 90, 91, 133),
            *(258, 259, 263, 264, 265, 266, 268, 316, 322, 425, 437),
        ),
    ),
}
"""Machine -> its number, the calls that are looked at, and those that end the process: to make, rename, link, truncate
or remove files, to change their modes, to run a program, to open or use a socket."""
_QUIET_EVENTS = ("object.", "sys.", "gc.", "cpython.", "code.", "builtins.id", "array.", "time.", "array_new", "id")
_ANSWER_BYTES = 1 << 20


class Ended(NamedTuple):
    """How a child ended."""

    answer: dict[str, Any]
    """What it said; empty when it died before."""
    events: list[str]
    """What it did that it may not do."""
    signal: str
    """What killed it; empty when it ended by itself."""


class Watched:
    """A folder with some files; everything that happens in it is seen."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("bait.txt", "bait.bin", "bait.py"):
            (folder / name).write_text(f"# {name}\n" * 64)
        self._file = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        assert self._file >= 0, "this machine cannot watch folders"
        assert _LIBC.inotify_add_watch(self._file, str(folder).encode(), 0x00000FFF) >= 0

    @property
    def paths(self) -> list[str]:
        """Names to lead somebody into the folder: files that are there, and one that is not."""
        return [str(self.folder / name) for name in ("bait.txt", "bait.bin", "bait.py", "new.bin")]

    def take_events(self) -> bool:
        """Whether anything has happened in the folder since the last time."""
        try:
            return bool(os.read(self._file, 65536))
        except BlockingIOError:
            return False


def run_watched(work: Callable[[], dict[str, Any]], readable: tuple[str, ...], *, seconds: float = 120.0) -> Ended:
    """Run `work` in a child that may read files below `readable` and Python's source, and nothing else."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_child(work, readable, writer)
    os.close(writer)
    data, end = b"", time.monotonic() + seconds
    while select.select([reader], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(reader, _ANSWER_BYTES)
        if not part:
            break
        data += part
    else:
        os.kill(child, signal.SIGKILL)
    os.close(reader)
    _, status = os.waitpid(child, 0)
    killer = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else ""
    found = json.loads(data) if data else {}
    return Ended(found.get("answer", {}), found.get("events", []), killer)


def _be_child(work: Callable[[], dict[str, Any]], readable: tuple[str, ...], writer: int) -> None:
    """Do the work under watch, answer, and end without running anything that the parent would run at its end."""
    events: list[str] = []
    is_over = False

    def see(event: str, args: tuple[Any, ...]) -> None:
        if not is_over and (text := _find_offence(event, args, readable)):
            events.append(text)

    quiet = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(quiet, stream)
    forbid_system_calls()
    sys.addaudithook(see)
    try:
        answer = work()
    except BaseException as error:
        answer = {"outcome": "traceback", "why": "".join(traceback.format_exception(error))[-3000:]}
    is_over = True
    content = json.dumps({"answer": answer, "events": events[:20]}).encode()
    while content:
        content = content[os.write(writer, content) :]
    os._exit(0)


def _find_offence(event: str, args: tuple[Any, ...], readable: tuple[str, ...]) -> str:
    """What a process did that it may not do; empty for everything else."""
    if event.startswith(_QUIET_EVENTS):
        return ""
    if event == "os.getxattr" and args[1] == "system.posix_acl_access":  # who can write to a file is asked of all
        return ""
    if event == "open":
        path, _, flags = args
        is_read = not (isinstance(flags, int) and flags & _WRITES)
        if isinstance(path, int):  # opened before, which was seen
            return "" if is_read else f"open of descriptor {path} with flags {flags}"
        is_known = isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith((*readable, sys.prefix))
        is_source = isinstance(path, str | bytes) and os.fsdecode(path).endswith((".py", "<string>"))
        return "" if is_read and (is_known or is_source) else f"open {path!r:.120} with flags {flags}"
    if event == "exec":
        name = getattr(args[0], "co_filename", "")
        return "" if name.startswith("<eval_with_key>") else f"exec of {name:.120}"
    if event == "compile":
        name = str(args[1])
        return "" if name.startswith("<eval_with_key>") or name == "<string>" else f"compile of {name:.120}"
    if event == "import":
        return f"import {args[0]}" if args[0] not in sys.modules else ""
    return f"{event} {args!r:.120}"


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


def can_forbid() -> bool:
    """Whether this machine's system calls are known here."""
    return sys.platform == "linux" and platform.machine() in _ARCHITECTURES


def forbid_system_calls() -> None:
    """From now on, writing a file, running a program or opening a socket ends this process."""
    if not can_forbid():
        return
    number, looked_at, forbidden = _ARCHITECTURES[platform.machine()]
    load, equal, any_bit, end = 0x20, 0x15, 0x45, 0x06
    code = [(load, 0, 0, 4), (equal, 1, 0, number), (end, 0, 0, _KILL), (load, 0, 0, 0)]
    for call in forbidden:
        code += [(equal, 0, 1, call), (end, 0, 0, _KILL)]
    code += [(equal, 0, 1, looked_at["clone3"]), (end, 0, 0, _ERROR | errno.ENOSYS)]
    code += [(equal, 0, 4, looked_at["clone"]), (load, 0, 0, 16), (any_bit, 1, 0, _CLONE_THREAD)]
    code += [(end, 0, 0, _KILL), (end, 0, 0, _ALLOW)]
    for name, index in (("openat", 32), ("open", 24)):
        if name in looked_at:
            code += [(equal, 0, 4, looked_at[name]), (load, 0, 0, index), (any_bit, 0, 1, _WRITES)]
            code += [(end, 0, 0, _KILL), (end, 0, 0, _ALLOW)]
    code.append((end, 0, 0, _ALLOW))
    instructions = (_Instruction * len(code))(*(_Instruction(*each) for each in code))
    program = _Program(len(code), instructions)
    no_new_privileges, set_filter = 38, 22
    assert _LIBC.prctl(no_new_privileges, 1, 0, 0, 0) == 0
    assert _LIBC.prctl(set_filter, 2, ctypes.byref(program), 0, 0) == 0, os.strerror(ctypes.get_errno())


def make_watched() -> Watched:
    """A watched folder in a place of its own."""
    return Watched(Path(tempfile.mkdtemp(prefix="watched-")) / "folder")
