"""An end for what blocks inside of a library, where no exception can be raised and no handler of a signal runs."""

import faulthandler
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from monograph.log import get_log

log = get_log("groups")


@contextmanager
def deadline(what: str, *, seconds: float, rank: int) -> Iterator[None]:
    """End the process (SIGABRT, with the stack of every thread) when the block takes longer."""

    def end() -> None:
        log.error(
            "rank %d: %s took longer than %.0f s (parallelism.timeout_seconds): a rank is missing, has died or hangs",
            *(rank, what, seconds),
        )
        faulthandler.dump_traceback(sys.__stderr__)  # type: ignore[arg-type]
        os.abort()

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
