"""Where the ranks of `monograph train --ranks N` write before the run has its folder. Loads without torch.

The launcher needs a place for the ranks' output before anything is checked, and a start that fails must leave the
folder as it was. So the output goes to a hidden folder inside; the run moves it to its logs once it has claimed the
folder, and leaves a link, because torch's launcher and the ranks know their files by the first path.
"""

import errno
import os
import shutil
from pathlib import Path

from monograph.private_temporary import make_private_temporary
from monograph.system.own_tree import remove_made

LOGS_VARIABLE = "MONOGRAPH_LAUNCH_LOGS"
"""The name of the hidden folder, set by the launcher for its ranks."""
_PREFIX = ".launch-"


class LaunchLogs:
    """The output of one launch's ranks, as the launcher sees it."""

    def __init__(self, folder: Path, label: str) -> None:
        self.folder = folder
        self.path = folder / f"{_PREFIX}{label}"
        self._made: list[Path] = []

    def make(self) -> None:
        """Make the hidden folder; OSError when it cannot be made."""
        there = self.folder.resolve() if self.folder.is_symlink() else self.folder
        self._made = [path for path in (there, *there.parents) if not path.exists()]
        there.mkdir(parents=True, exist_ok=True)
        self.path.mkdir()
        os.environ[LOGS_VARIABLE] = self.path.name

    def settle(self, *, is_kept: bool) -> Path:
        """Where the output is from now on: in the run's logs, else outside of the folder, which is as it was.

        Without `is_kept`, the output of a run that never had its folder is deleted.
        """
        os.environ.pop(LOGS_VARIABLE, None)
        if self.path.is_symlink():
            moved = self.folder / self.path.readlink()
            self.path.unlink()
            return moved.parent
        kept = self.path
        if is_kept and self.path.is_dir():
            kept = make_private_temporary("monograph-logs-")
            for entry in list(self.path.iterdir()):
                shutil.move(entry, kept / entry.name)
        remove_made(self.path)
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:
                break
        return kept


def adopt_launch_logs(folder: Path, *, moved_to: Path | None) -> None:
    """Move the launcher's output of this run into its logs; `moved_to` is where its folder went, if it was moved."""
    name = os.environ.get(LOGS_VARIABLE, "")
    hidden = (moved_to or folder) / name
    if not name.startswith(_PREFIX) or not hidden.is_dir() or hidden.is_symlink():
        return
    target = folder / "logs" / name.removeprefix(".")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        hidden.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        target = folder / target.name  # logs is a link to another disk: these stay beside it, since ranks write them
        hidden.rename(target)
    (folder / name).symlink_to(target.relative_to(folder))
