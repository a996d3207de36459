"""A user's own recipe with a model that can wait and fail on purpose: for tests that look at whole processes."""

import os
import time
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

from monograph.models.llama3.config import Llama3Config
from monograph.train.config import TrainerConfig
from tests.kit.tiny import SHARED_FOLDER, tiny


@dataclass(kw_only=True, slots=True)
class PacedConfig(Llama3Config):
    """A llama that takes its time."""

    owner: ClassVar[str] = "tests.kit.paced_model:Paced"
    pause_seconds: float = 0.0
    """Sleep this long in every forward."""
    fail_on_rank: int = -1
    """The rank that raises an error; -1 is none."""
    fail_at_call: int = 3
    """The forward in which it does."""


def paced() -> TrainerConfig:
    """A tiny llama on the test corpus; everything else comes from flags."""
    config = tiny("llama3", SHARED_FOLDER)
    plain = config.model
    model = PacedConfig(**{field.name: getattr(plain, field.name) for field in fields(plain)})
    return config.replace(model=model)


def find_processes(mark: str) -> dict[int, str]:
    """Pid -> RANK of every process whose command line holds `mark` (a folder no one else uses); "" for launchers."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark.encode() in (entry / "cmdline").read_bytes() and b") Z " not in (entry / "stat").read_bytes():
                found[int(entry.name)] = read_environment(entry).get("RANK", "")
        except OSError:
            continue  # it ended while we looked
    return found


def read_environment(entry: Path) -> dict[str, str]:
    pairs = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def wait_until(condition: Any, seconds: float, what: str) -> float:
    """Wait for a condition and return how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"after {seconds} s still not: {what}"
        time.sleep(0.05)
    return time.monotonic() - start
