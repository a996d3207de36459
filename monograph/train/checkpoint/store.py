"""The folder that holds a run's checkpoints, and the moves that keep each of them whole or absent.

    step-00000100/          a committed checkpoint: it appeared in one rename and is never written to again
    .tmp-step-00000200-x/   a save under way, or what a killed one left behind
    .old-step-00000100/     a checkpoint making room for a new one of the same step, on its way to checkpoints.1/
    .trash-step-...-x/      a checkpoint being deleted

A step may be a link to a folder elsewhere, where somebody has archived it: it is read like any other, moved by the
link's name, and never entered to delete anything.

Names that begin with a dot are leftovers as soon as their process is dead; `clean` finishes what it had begun.
"""

import errno
import os
import re
import secrets
import stat
from pathlib import Path

from monograph.errors import CheckpointError
from monograph.locks.folder_lock import FolderLock
from monograph.locks.lock_file import InUse
from monograph.log import get_log
from monograph.system.own_tree import is_plain_folder
from monograph.train.checkpoint.disk import Disk, remove_tree
from monograph.train.checkpoint.manifest import MANIFEST_NAME
from monograph.train.checkpoint.patient_read import UnreadableError, read_again
from monograph.train.set_aside import find_free

LOOKS = 20
"""How often a folder is listed again when a run has deleted all that was listed."""
_STEP_NAME = re.compile(r"step-([0-9]{8,})")
_OLD_NAME = re.compile(r"\.old-(step-[0-9]{8,})")
_LEFTOVER_NAME = re.compile(r"\.(tmp|trash)-(old-)?step-[0-9]{8,}-[0-9a-f]{8}")

log = get_log(__name__)


class Store:
    """One folder of checkpoints. Several processes may read it; only one at a time may write (`lock`)."""

    def __init__(self, folder: Path, disk: Disk | None = None) -> None:
        self.folder = folder
        self.disk = disk or Disk()
        self._lock = FolderLock(folder)

    def open(self, *, is_new: bool = False) -> None:
        """Make the folder, keep other writers out, and finish or undo what a dead process left half done.

        A new run (`is_new`) is refused where another one has left its checkpoints.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.lock()
            try:
                self.clean()
                if is_new:
                    self.check_unused()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise CheckpointError(
                f"checkpoints cannot be written to {self.folder}",
                why=str(error),
                do="choose another --checkpoint.folder, or --checkpoint.enabled False",
            ) from error

    def check_unused(self) -> None:
        """Refuse a new run where there are checkpoints: each would replace the other's, and `latest` mix them up."""
        if self.find_all():
            raise CheckpointError(
                f"{self.folder} holds the checkpoints of another run",
                why=f"two runs in one folder would replace each other's checkpoints; {describe_choices(self)}",
                do="continue that run with --checkpoint.load latest, or choose another --checkpoint.folder, "
                f"such as {self.folder / 'NAME'}",
            )

    def put_back(self) -> None:
        """Undo a save that was killed while it replaced a checkpoint; a folder without one is not touched."""
        if self.has_replaced():
            self.open()
            self.close()

    def has_replaced(self) -> bool:
        """Whether a save that was killed has left a checkpoint under another name, to be put back."""
        return self.folder.is_dir() and any(_OLD_NAME.fullmatch(path.name) for path in self.folder.iterdir())

    def lock(self) -> None:
        """Refuse to share the folder with another writing process: two runs would delete each other's saves."""
        try:
            self._lock.acquire()
        except InUse as busy:
            raise CheckpointError(
                f"another run is writing checkpoints to {self.folder} ({busy.who})",
                why="two runs in one folder would replace each other's checkpoints",
                do="stop it, or choose another --job.dump_folder or --checkpoint.folder",
            ) from None

    def check(self) -> None:
        """Raise FolderMoved when the path no longer leads to the folder that was locked."""
        self._lock.check()

    def read_owner(self) -> str:
        """Who writes here, as the lock says: what a rank must see that shares the folder with the first one."""
        return self._lock.read_owner()

    def close(self) -> None:
        """Let other writers in."""
        self._lock.release()

    def step_path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def find_all(self) -> list[Path]:
        """The committed checkpoints by step, lowest first; whether each is good is another question."""
        for _ in range(LOOKS):
            try:
                names = read_again(self.folder, lambda: os.listdir(self.folder))
                listed = [path for name in names if find_step(path := self.folder / name) is not None]
                found = [path for path in listed if _is_folder(path)]
            except (FileNotFoundError, NotADirectoryError):
                return []
            except OSError as error:
                raise UnreadableError(self.folder, error.strerror or str(error)) from None
            if found or all(map(os.path.lexists, listed)):
                break
        return sorted(found, key=lambda path: (find_step(path) or 0, path.name))

    def prepare(self, step: int) -> Path:
        """A new, empty folder to write into; nobody takes it for a checkpoint."""
        self.check()
        path = self.folder / f".tmp-{self.step_path(step).name}-{secrets.token_hex(4)}"
        self.disk.make_folder(path)
        return path

    def commit(self, prepared: Path, final: Path) -> None:
        """Turn a fully written and synced folder into a checkpoint, by one rename."""
        self.check()
        old = final.with_name(f".old-{final.name}")
        replaces = os.path.lexists(final)  # a link that leads nowhere has the name as well
        if replaces:
            self.disk.rename(final, old)
        try:
            self.disk.rename(prepared, final)
        except OSError:
            if replaces:
                self.disk.rename(old, final)
            raise
        self.disk.sync_folder(self.folder)
        if replaces:
            self._keep_replaced(old, final.name)

    def set_later_aside(self, step: int) -> None:
        """Move checkpoints of later steps, which the run passed over or goes back from, into a folder beside."""
        later = [path for path in self.find_all() if (find_step(path) or 0) > step]
        if not later:
            return
        kept = self._find_aside()
        for path in later:
            try:
                self._keep(path, kept / path.name)
            except OSError as error:
                raise CheckpointError(
                    f"{path} cannot be moved to {kept}",
                    why=f"{error.strerror}; a run that goes on from step {step} would replace it later",
                    do="move it away by hand",
                ) from None
        names = ", ".join(path.name for path in later)
        log.warning("going on from step %d: the later checkpoints %s are now in %s", step, names, kept)

    def _keep_replaced(self, old: Path, name: str) -> None:
        """Keep what a new checkpoint of the same step took the name of: it may be another run's, or good after all.

        Failing to move it costs nothing that was committed: it is logged and tried again at the next start.
        """
        kept = old
        try:
            kept = self._find_aside() / name
            self._keep(old, kept)
        except OSError as error:
            log.warning("could not move %s to %s: %s", old, kept, error)
        else:
            log.warning("there was a %s before: it is now %s", name, kept)

    def _find_aside(self) -> Path:
        """A free folder beside this one; inside of it where beside is another file system, or is not ours."""
        folder = self.folder.resolve()
        beside = folder.parent
        is_near = beside.stat().st_dev == folder.stat().st_dev and not self.folder.is_symlink()
        return find_free(self.folder if is_near and os.access(beside, os.W_OK) else self.folder / "aside")

    def _keep(self, path: Path, kept: Path) -> None:
        """Move a checkpoint into a folder beside; the folder lasts before anything is in it."""
        if not kept.parent.is_dir():
            self.disk.make_folder(kept.parent)
            self.disk.sync_folder(kept.parent.parent)
        self.disk.rename(path, kept)
        self.disk.sync_folder(kept.parent)
        self.disk.sync_folder(self.folder)

    def delete(self, path: Path) -> None:
        """Take a folder away, first its name and then its content, so that no half of it can be taken for a checkpoint.

        Failing to delete costs space and nothing else: it is logged and tried again at the next start.
        """
        try:
            trash = path
            if not path.name.startswith((".trash-", ".tmp-")):
                trash = self.folder / f".trash-{path.name.lstrip('.')}-{secrets.token_hex(4)}"
                self.disk.rename(path, trash)
                self.disk.sync_folder(self.folder)
            remove_tree(self.disk, trash)
        except OSError as error:
            log.warning("could not delete %s: %s", path, error)

    def clean(self) -> None:
        """Finish or undo what dead processes left: a replaced checkpoint whose successor never came is put back."""
        for path in sorted(self.folder.iterdir()):
            replaced = _OLD_NAME.fullmatch(path.name)
            if replaced and not os.path.lexists(self.folder / replaced[1]):
                log.warning("%s: putting back the checkpoint that a stopped save had moved aside", replaced[1])
                self.disk.rename(path, self.folder / replaced[1])
                self.disk.sync_folder(self.folder)
            elif replaced:
                self._keep_replaced(path, replaced[1])
            elif _LEFTOVER_NAME.fullmatch(path.name) and is_plain_folder(path):
                log.info("removing %s, left over from a stopped save", path.name)
                self.delete(path)


def _is_folder(path: Path) -> bool:
    """Whether there is a folder; an error of the system where that cannot be told."""
    try:
        return stat.S_ISDIR(read_again(path, path.stat).st_mode)
    except FileNotFoundError:  # deleted since it was listed, or a link that leads nowhere
        return False
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise


def find_step(path: Path) -> int | None:
    """The step a folder's name stands for, or None for a folder that is named otherwise."""
    named = _STEP_NAME.fullmatch(path.name)
    return int(named[1]) if named else None


def is_checkpoint(path: Path) -> bool:
    """Whether a folder is meant to be a checkpoint, good or not."""
    return path.is_dir() and (find_step(path) is not None or (path / MANIFEST_NAME).exists())


def describe_choices(store: Store) -> str:
    """What there is to load, for an error's last line."""
    names = [path.name for path in store.find_all()]
    if not names:
        return f"there are no checkpoints in {store.folder}"
    shown = names if len(names) <= 8 else ["...", *names[-8:]]
    return f"in {store.folder} there are: {', '.join(shown)}"


def refuse_path(store: Store, path: Path) -> CheckpointError:
    """The error about a path that has nothing to load; a folder in it may have, such as that of another run."""
    inside = sorted(path.iterdir()) if path.is_dir() else []
    nested = next((each for each in inside if Store(each).find_all()), None)
    return CheckpointError(
        f"cannot load {path}",
        why="it is not a checkpoint and contains none" if path.exists() else "it does not exist",
        do=f"--checkpoint.load {nested}"
        if nested
        else f"write latest, a step number or a path; {describe_choices(store)}",
    )
