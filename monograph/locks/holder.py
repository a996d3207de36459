"""Who holds a lock: enough about a process to tell later, on this machine, whether it is still the same one.

A process id is reused after its process has ended, so the time it started counts too; both mean nothing on another
machine, or in another container, so the machine is part of it.
"""

import json
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from monograph.system.foreign_json import parse_json

MAX_PID = 1 << 31
_START_FIELD = 19
"""Of /proc/PID/stat behind the command's name: when the process started, in clock ticks after boot."""


@dataclass(frozen=True)
class Holder:
    """One process that holds, or held, one lock."""

    pid: int
    started: str
    """When the process started, by the machine's own count; empty where the system does not say."""
    host: str
    machine: str
    """This start of this machine, and the process namespace in it."""
    since: str
    token: str
    """Different for every lock that is ever taken."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether it ran where this process can see it."""
        return self.machine == find_machine()

    @property
    def is_alive(self) -> bool:
        """Whether that very process still exists, asked where it ran; a zombie has ended."""
        state, started = read_process(self.pid)
        return bool(state) and state != "Z" and started == self.started

    def render(self) -> bytes:
        """As the content of a lock file."""
        return json.dumps(asdict(self)).encode() + b"\n"


def this_process() -> Holder:
    """A new holder: this process, with a token of its own."""
    return Holder(
        pid=os.getpid(),
        started=read_process(os.getpid())[1],
        host=socket.gethostname(),
        machine=find_machine(),
        since=time.strftime("%Y-%m-%d %H:%M:%S"),
        token=secrets.token_hex(8),
    )


def parse_holder(content: bytes) -> Holder | None:
    """The holder that a lock file names; None when it names none, because it was released or never written whole."""
    try:
        values: Any = parse_json(content, "the lock", kind=dict)
        holder = Holder(**values)
    except (ValueError, TypeError, RecursionError):
        return None
    kinds = {name: int if name == "pid" else str for name in Holder.__dataclass_fields__}
    if not all(type(getattr(holder, name)) is kind for name, kind in kinds.items()):
        return None
    is_printable = all(value.isprintable() for value in asdict(holder).values() if isinstance(value, str))
    return holder if is_printable and 0 < holder.pid < MAX_PID else None


def read_process(pid: int) -> tuple[str, str]:
    """State and start time of a process, both empty when there is none; "?" and nothing where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], fields[_START_FIELD]
    except (OSError, IndexError):
        if Path("/proc/self/stat").exists():
            return "", ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return "", ""
    except OSError:
        pass
    return "?", ""


def find_machine() -> str:
    """This start of this machine and this process namespace, as far as the system tells."""
    parts = [socket.gethostname()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(str(os.stat("/proc/self/ns/pid").st_ino))
    except OSError:
        pass
    return "/".join(parts)
