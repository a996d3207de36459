"""Names the rank that a checkpoint waits for: which file it writes, and for how long.

Every rank notes in torch's store what it is writing, and the first rank looks there while a save lasts longer than
usual. So it also names ranks that have stopped answering, and it works while training goes on.
"""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from monograph.compat.ops import find_default_store
from monograph.log import get_log
from monograph.train.checkpoint.ranks import Ranks

log = get_log(__name__)
_PREFIX = "checkpoint-writers"
_LOOKS = 4
"""How often the first rank looks while the time of the limit passes once more."""


@dataclass(frozen=True)
class SlowWriter:
    """A rank that has been writing one file for too long."""

    rank: int
    host: str
    file: str
    seconds: float


class WriterWatch:
    """Warns when a rank writes one file for more than `limit` seconds, and again whenever that time has doubled.

    0 never warns. `slowest` is the rank that the save under way waits for, for the metrics; None when there is none.
    """

    def __init__(self, ranks: Ranks, *, limit: float) -> None:
        self.slowest: SlowWriter | None = None
        self._ranks, self._limit = ranks, limit
        self._own = dist.HashStore() if ranks.size == 1 else None
        self._told: dict[tuple[int, str], float] = {}

    @contextmanager
    def writing(self, path: Path) -> Iterator[None]:
        """This rank writes a file."""
        noted = {"file": f"{path.parent.name}/{path.name}", "since": time.time(), "host": socket.gethostname()}
        self._note(json.dumps(noted, allow_nan=False))
        try:
            yield
        finally:
            self._note("")

    @contextmanager
    def watching(self, step: int) -> Iterator[None]:
        """A save of all ranks; the first one looks after the others meanwhile."""
        if not self._limit or not self._ranks.is_first:
            yield
            return
        is_over = threading.Event()
        looking = threading.Thread(target=self._look_until, args=(is_over, step), name="slow-writers", daemon=True)
        looking.start()
        try:
            yield
        finally:
            is_over.set()
            looking.join()
            self._told.clear()
            self.slowest = None

    def _note(self, text: str) -> None:
        """Tell the first rank; that it cannot be told is no reason for a save to fail."""
        if self._limit:
            with suppress(dist.DistError, RuntimeError):
                self._store().set(str(self._ranks.rank), text)

    def _store(self) -> dist.Store:
        """Asked for each time: whoever keeps torch's store keeps its threads alive."""
        return dist.PrefixStore(_PREFIX, self._own or find_default_store())

    def _look_until(self, is_over: threading.Event, step: int) -> None:
        wait = self._limit
        while not is_over.wait(wait):
            wait = self._limit / _LOOKS
            with suppress(dist.DistError, RuntimeError):
                found = self._find_slow()
                self.slowest = max(found, key=lambda each: each.seconds, default=None)
                for each in found:
                    self._tell(step, each)

    def _find_slow(self) -> list[SlowWriter]:
        store, now = self._store(), time.time()
        found = []
        for rank in range(self._ranks.size):
            text = store.get(str(rank)) if store.check([str(rank)]) else b""
            noted: dict[str, Any] = json.loads(text) if text else {}
            if noted and now - noted["since"] >= self._limit:
                found.append(SlowWriter(rank, noted["host"], noted["file"], round(now - noted["since"], 1)))
        return found

    def _tell(self, step: int, slow: SlowWriter) -> None:
        key = (slow.rank, slow.file)
        if slow.seconds < 2 * self._told.get(key, 0.0):
            return
        self._told[key] = slow.seconds
        log.warning(
            "the checkpoint of step %d waits for rank %d (%s), which has been writing %s for %.0f s",
            *(step, slow.rank, slow.host, slow.file, slow.seconds),
        )

    def describe(self) -> dict[str, Any]:
        """What the record of a step says about the save under way; nothing when no rank is slow."""
        slow = self.slowest
        return {} if slow is None else {"slow_writer": asdict(slow)}
