"""The run's folder: one run at a time writes to it, a new run never writes over an old one, its config lies inside.

A run has its folder in two steps. `reserved_folder` keeps others out while everything is checked and built; a start
that fails there leaves the folder as it was. `RunFolder.claim` comes right before the first step: an earlier run is
moved aside and files are written.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from monograph import strict_json
from monograph.config.json_form import to_json
from monograph.errors import ConfigError, MonographError
from monograph.line_file import LineFile
from monograph.locks.folder_lock import LOCK_NAME, FolderLock
from monograph.locks.lock_file import InUse
from monograph.log import get_log, write_log_to
from monograph.parallel.flight import FOLDER as FLIGHT_FOLDER
from monograph.parallel.flight import make_flight_folder
from monograph.parallel.groups import Groups
from monograph.passes.numerics import NumericsPromise
from monograph.system.own_file import NotOwnFile, open_own
from monograph.train.checkpoint.config import AUTO, LATEST
from monograph.train.checkpoint.hf_assets import ASSETS_FOLDER
from monograph.train.checkpoint.model_source import find_tokenizer_assets
from monograph.train.checkpoint.store import Store
from monograph.train.config import TrainerConfig
from monograph.train.earlier_run import CONFIG_FILE, check_ours, has_run, is_file_with
from monograph.train.goodput import FILE as GOODPUT_NAME
from monograph.train.launch_logs import adopt_launch_logs
from monograph.train.set_aside import set_aside
from monograph.train.write_failures import SmallFile

log = get_log("folder")
HISTORY_NAME = "config.history.jsonl"
"""One line for each start of the run: when, from which step, what changed, and the whole configuration."""
_ATTEMPTS = 5


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """Where a run begins, as its folder has to know it."""

    step: int = 0
    """Steps that lie behind."""
    loaded: Path | None = None
    """The checkpoint it starts from."""
    is_continued: bool = False
    """Whether that is a checkpoint of this folder's own run, which then goes on here."""
    changes: list[str] = field(default_factory=list)
    """Settings that differ from those the checkpoint was saved with: "path: saved -> now"."""


@dataclass
class RunFolder:
    """The folder of a run, as long as the run has it. Only the first rank locks it and writes small files."""

    config: TrainerConfig
    lock: FolderLock | None = None
    files: list[SmallFile] = field(default_factory=list)
    is_claimed: bool = False

    @property
    def path(self) -> Path:
        return Path(self.config.job.dump_folder)

    def claim(self, groups: Groups, start: RunStart) -> None:
        """Make the folder this run's own, all ranks together: the first step is next.

        With its whole config and the tokenizer's files inside, what was trained can be used from the folder alone.
        """
        # Read before anything is moved: a run that starts from the model in its own folder has its tokenizer there.
        assets = find_tokenizer_assets(self.config.tokenizer) if self.lock is not None else {}
        _decide_on_rank_zero(groups, lambda: self._take_over(start))
        self.is_claimed = True
        _make(self.path)
        make_flight_folder(self.path / FLIGHT_FOLDER, groups.rank)
        write_log_to(self.path / "logs" / f"rank-{groups.rank}.log")
        if self.lock is not None:
            described = to_json(self.config)
            self.files.append(SmallFile(self.path / CONFIG_FILE, strict_json.dump(described, indent=1) + "\n"))
            kept = {self.path / ASSETS_FOLDER / name: data for name, data in assets.items()}
            self.files += [SmallFile(path, data) for path, data in kept.items() if not is_file_with(path, data)]
            self._add_to_history(start, described)
            self.retry()

    def check(self) -> None:
        """Raise FolderMoved when the path leads somewhere else by now; retry what could not be written yet."""
        if self.lock is not None:
            self.lock.check()
        self.retry()

    def write_numerics(self, promise: NumericsPromise) -> None:
        """Put what the run promises about its numerics into the folder, for `compare` and for readers."""
        if self.lock is not None:
            self.files.append(SmallFile(self.path / "numerics.txt", f"{promise}\n"))
            self.retry()

    def retry(self) -> None:
        """Write the files that waited for the folder, or that a full disk has refused so far."""
        for file in self.files if self.is_claimed else []:
            file.attempt()

    def find_missing(self) -> list[str]:
        """What could not be written, one line each."""
        self.retry()
        return [text for file in self.files if (text := file.failures.describe())]

    def _take_over(self, start: RunStart) -> None:
        """Move an earlier run aside, unless it goes on here. The lock of the folder moves with it."""
        kept: Path | None = None
        check_ours(self.path, {})
        if has_run(self.path) and not start.is_continued and not _begins_again(self.config):
            _check_movable(self.path)
            kept = _move_away(self.path)
            log.info("an earlier run was in %s; it is now in %s%s", self.path, kept, _describe_continuing(kept))
            before, self.lock = self.lock, _lock(self.path)
            if before is not None:
                before.release()
        else:
            _check_lines(self.path)
        adopt_launch_logs(self.path, moved_to=kept)

    def _add_to_history(self, start: RunStart, described: dict[str, Any]) -> None:
        line = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "step": start.step,
            "loaded": str(start.loaded or ""),
            "changes": start.changes,
            "config": described,
        }
        history = LineFile(self.path / HISTORY_NAME)
        history.write(strict_json.dump(line), step=start.step)
        history.close()
        if missing := history.describe_missing():
            log.warning("%s", missing)


@contextmanager
def reserved_folder(config: TrainerConfig, groups: Groups) -> Iterator[RunFolder]:
    """Keep other runs out of the folder, all ranks together; one that is never claimed is left as it was found."""
    folder = RunFolder(config)
    before = _FolderBefore(folder.path)

    def reserve() -> None:
        folder.lock = lock_run_folder(config)

    try:
        _decide_on_rank_zero(groups, reserve)
        yield folder
    finally:
        if folder.is_claimed and folder.lock is not None:
            folder.lock.release()
        elif folder.lock is not None:
            before.restore(folder.lock)


def check_run_folder(config: TrainerConfig) -> None:
    """Refuse a folder that a run could not have, and leave it as it was found."""
    before = _FolderBefore(Path(config.job.dump_folder))
    before.restore(lock_run_folder(config))


class _FolderBefore:
    """What a start that fails has to take away again: the lock's file, and folders that were made for it."""

    def __init__(self, folder: Path) -> None:
        self.had_lock = (folder / LOCK_NAME).exists()
        there = folder.resolve() if folder.is_symlink() else folder
        self.missing = [path for path in (there, *there.parents) if not path.exists()]

    def restore(self, lock: FolderLock) -> None:
        """Release the lock; a folder that somebody else has put something into meanwhile stays."""
        lock.release(remove=not self.had_lock)
        for folder in self.missing:
            try:
                folder.rmdir()
            except OSError:
                return


def lock_run_folder(config: TrainerConfig) -> FolderLock:
    """Lock the folder for this process, and refuse what could not be carried out later; moves nothing."""
    folder = Path(config.job.dump_folder)
    before = _FolderBefore(folder)
    lock = _lock(folder)
    try:
        _check_checkpoint_folder(config, folder)
        check_ours(folder, find_tokenizer_assets(config.tokenizer))
        if has_run(folder) and (not config.checkpoint.load or config.checkpoint.load_model_only):
            _check_movable(folder)
    except BaseException:
        before.restore(lock)
        raise
    return lock


def _check_lines(folder: Path) -> None:
    """Refuse to go on in a folder whose metrics or logs are links or other users': a run adds to its own files."""
    names = ("metrics.jsonl", GOODPUT_NAME, HISTORY_NAME)
    for path in (*(folder / name for name in names), *sorted((folder / "logs").glob("rank-*.log"))):
        if os.path.lexists(path):
            try:
                os.close(open_own(path, os.O_WRONLY | os.O_APPEND))
            except NotOwnFile as error:
                do = "move it away, or put the file itself in its place"
                raise ConfigError(f"{path} cannot be added to", why=error.strerror or "", do=do) from None
            except OSError as error:  # the disk's trouble: lines wait until it is over
                log.debug("%s: %s", path, error)


def _begins_again(config: TrainerConfig) -> bool:
    """A run that is started with `auto` and was stopped before its first checkpoint: it has nothing to keep."""
    store = Store(Path(config.job.dump_folder) / config.checkpoint.folder)
    return config.checkpoint.load == AUTO and not store.find_all()


def _decide_on_rank_zero(groups: Groups, act: Callable[[], None]) -> None:
    """Do it on the first rank; when it refuses, every rank raises the same at once."""
    refusal: MonographError | None = None
    if groups.rank == 0:
        try:
            act()
        except MonographError as error:
            refusal = error
    told = groups.broadcast_object((refusal.what, refusal.why, refusal.do) if refusal else None)
    if refusal is not None:
        raise refusal
    if told is not None:
        raise ConfigError(told[0], why=told[1], do=told[2])


def _lock(folder: Path) -> FolderLock:
    lock = FolderLock(folder)
    for attempt in range(_ATTEMPTS):
        try:
            _make(folder)
            lock.acquire()
        except InUse as busy:
            raise ConfigError(
                f"job.dump_folder is {folder}, which another run is using ({busy.who})",
                why="; ".join(part for part in ("two runs in one folder would mix their files", busy.why) if part),
                do="wait until it has ended, stop it, or choose another --job.dump_folder",
            ) from None
        except OSError as error:
            if isinstance(error, FileNotFoundError) and attempt < _ATTEMPTS - 1:
                continue  # a start that failed has just removed the folder that it had made
            raise _make_unwritable(folder, error) from None
        return lock
    raise AssertionError("the last attempt returns or raises")


def _make(folder: Path) -> None:
    """Make the folder; where a link leads to none yet, on the disk that the link leads to."""
    try:
        os.makedirs(os.path.realpath(folder), exist_ok=True)
    except OSError as error:
        raise _make_unwritable(folder, error) from None


def _make_unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"job.dump_folder is {folder}", why=f"it cannot be written: {error}", do="choose a folder you can write to"
    )


def _check_checkpoint_folder(config: TrainerConfig, folder: Path) -> None:
    """Refuse checkpoints kept elsewhere that another run writes or has left, before anything is moved or built."""
    elsewhere = folder / config.checkpoint.folder
    is_inside = elsewhere.resolve().is_relative_to(folder.resolve())
    if not config.checkpoint.enabled or is_inside or not elsewhere.is_dir():
        return
    store = Store(elsewhere)
    try:
        store.lock()
    except OSError:  # the checkpoint manager says what is wrong with it
        return
    store.close()
    moves_along = Path(os.path.normpath(elsewhere)).is_relative_to(os.path.normpath(folder))  # a link in the folder
    if not moves_along and not _may_continue(config, elsewhere):
        store.check_unused()


def _may_continue(config: TrainerConfig, checkpoints: Path) -> bool:
    """Whether the run may go on from a checkpoint of this folder; what is in it shows when it is loaded."""
    load = config.checkpoint.load
    if not load or config.checkpoint.load_model_only:
        return False
    if load in (LATEST, AUTO) or (load.isascii() and load.isdigit()):
        return True
    named = Path(load)
    return checkpoints.resolve() in (named.resolve(), named.resolve().parent, named.absolute().parent.resolve())


def _move_away(folder: Path) -> Path:
    """Rename the folder itself, so that its files stay on their disk and a link to it leads to the new run."""
    try:
        return set_aside(folder.resolve() if folder.is_symlink() else folder)
    except OSError as error:
        raise ConfigError(
            f"job.dump_folder is {folder}, where an earlier run left its files",
            why=f"they cannot be moved aside: {error}",
            do="choose another --job.dump_folder, or --checkpoint.load latest to continue the earlier run",
        ) from None


def _describe_continuing(kept: Path) -> str:
    """How to continue a run that was moved aside; nothing when it left no checkpoint."""
    has_checkpoints = bool(Store(kept / "checkpoints").find_all())
    return f" (to continue it: --job.dump_folder {kept} --checkpoint.load latest)" if has_checkpoints else ""


def _check_movable(folder: Path) -> None:
    """Refuse early what `claim` could not do: move the user's working folder, or write beside the folder."""
    why = ""
    if Path.cwd().is_relative_to(folder.resolve()):
        why = "a new run would move the folder aside, and you are working inside it"
    elif not os.access(folder.resolve().parent, os.W_OK):
        why = f"a new run would move the folder aside, and {folder.resolve().parent} cannot be written"
    if why:
        raise ConfigError(
            f"job.dump_folder is {folder}, where an earlier run left its files",
            why=why,
            do="choose another --job.dump_folder, or --checkpoint.load latest to continue the earlier run",
        )
