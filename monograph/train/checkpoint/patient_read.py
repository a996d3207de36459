"""Retry reads from disks that may refuse for a moment, then raise an error that says so. Loads without torch.

A network mount that is remounted, late or crowded answers ESTALE, EIO or EACCES for files that are whole. That says
nothing about their content, so it never counts as damage. A local disk is read once: its refusals do not pass.
"""

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from monograph.errors import CheckpointError
from monograph.log import get_log
from monograph.system.file_system import is_local

T = TypeVar("T")
PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Before each new try: NFS may keep an old answer for a minute."""

log = get_log(__name__)


class UnreadableError(CheckpointError):
    """Storage refused to show a checkpoint, so whether it is good is not known."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"checkpoint {path} cannot be read: {reason}",
            why="it may be whole: an older one in its place would lose steps",
            do="repair the mount or the rights and start again, or choose another one by its step: --checkpoint.load N",
        )
        self.path, self.reason = path, reason

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:
        return type(self), (self.path, self.reason)


def read_again(path: Path, work: Callable[[], T], *, may_be_late: bool = False) -> T:
    """Return what `work` reads below `path`, retrying refusals, and missing files whose names may still appear."""
    for pause in PAUSES_SECONDS:
        try:
            return work()
        except FileNotFoundError:
            if not may_be_late or is_local(path):
                raise
        except (NotADirectoryError, IsADirectoryError, FileExistsError):
            raise  # these say what is there, and not that a disk refuses
        except OSError as error:
            if error.errno == errno.ELOOP or is_local(path):
                raise  # a link to itself stays one, and so does what a local disk refuses
            log.warning("%s: it is tried again in %g s", error, pause)
        time.sleep(pause)
    return work()
