"""The run's folder: one run at a time writes to it, a new run never writes over an old one, its config lies inside."""

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from monograph import strict_json
from monograph.config.json_form import to_json
from monograph.errors import ConfigError, MonographError
from monograph.locks.folder_lock import FolderLock
from monograph.locks.lock_file import InUse
from monograph.log import get_log
from monograph.parallel.groups import Groups
from monograph.passes.numerics import NumericsPromise
from monograph.train.checkpoint.hf_assets import ASSETS_FOLDER
from monograph.train.checkpoint.model_source import find_tokenizer_assets
from monograph.train.checkpoint.store import Store
from monograph.train.config import TrainerConfig
from monograph.train.write_failures import SmallFile

log = get_log("folder")
_TRACES_OF_A_RUN = ("metrics.jsonl", "checkpoints", "config.json")


@dataclass
class RunFolder:
    """The folder of a run, as long as the run has it. Only the first rank locks it and writes small files."""

    path: Path
    lock: FolderLock | None = None
    files: list[SmallFile] = field(default_factory=list)

    def check(self) -> None:
        """Raise FolderMoved when the path leads somewhere else by now; retry what could not be written yet."""
        if self.lock is not None:
            self.lock.check()
        self.retry()

    def write_config(self, config: TrainerConfig) -> None:
        """Put the whole config into the folder, as JSON that `from_json` reads back without loss, and the tokenizer's
        files: what was trained can be used from the folder alone."""
        if self.lock is not None:
            self.files.append(SmallFile(self.path / "config.json", strict_json.dump(to_json(config), indent=1) + "\n"))
            assets = find_tokenizer_assets(config.tokenizer)
            self.files += [SmallFile(self.path / ASSETS_FOLDER / name, data) for name, data in assets.items()]
            self.retry()

    def write_numerics(self, promise: NumericsPromise) -> None:
        """Put what the run promises about its numerics into the folder, for `compare` and for readers."""
        if self.lock is not None:
            self.files.append(SmallFile(self.path / "numerics.txt", f"{promise}\n"))
            self.retry()

    def retry(self) -> None:
        """Write the files that a full disk has refused so far."""
        for file in self.files:
            file.attempt()

    def find_missing(self) -> list[str]:
        """What could not be written, one line each."""
        self.retry()
        return [text for file in self.files if (text := file.failures.describe())]


@contextmanager
def claimed_folder(config: TrainerConfig, groups: Groups) -> Iterator[RunFolder]:
    """Lock the folder and make it ready, all ranks together; when it cannot be had, all of them learn why at once."""
    lock: FolderLock | None = None
    refusal: MonographError | None = None
    if groups.rank == 0:
        try:
            lock = lock_run_folder(config)
        except MonographError as error:
            refusal = error
    path = Path(config.job.dump_folder)
    try:
        told = groups.broadcast_object((refusal.what, refusal.why, refusal.do) if refusal else None)
        if refusal is not None:
            raise refusal
        if told is not None:
            raise ConfigError(told[0], why=told[1], do=told[2])
        _make(path)
        yield RunFolder(path, lock)
    finally:
        if lock is not None:
            lock.release()


def lock_run_folder(config: TrainerConfig) -> FolderLock:
    """Lock the folder for this process, then move an earlier run that lies in it aside, unless it is continued.

    Nobody moves a folder without its lock, so the folder of a run that is still writing stays where it is.
    """
    folder = Path(config.job.dump_folder)
    lock = _lock(folder)
    try:
        _check_checkpoint_folder(config, folder)
        if config.checkpoint.load or not any((folder / name).exists() for name in _TRACES_OF_A_RUN):
            return lock
        _check_movable(folder)
        kept = _move_away(folder)
        log.info("an earlier run was in %s; it is now in %s%s", folder, kept, _describe_continuing(kept))
        fresh = _lock(folder)
    except BaseException:
        lock.release()
        raise
    lock.release()
    return fresh


def _lock(folder: Path) -> FolderLock:
    lock = FolderLock(folder)
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
        raise _make_unwritable(folder, error) from None
    return lock


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _make_unwritable(folder, error) from None


def _make_unwritable(folder: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"job.dump_folder is {folder}", why=f"it cannot be written: {error}", do="choose a folder you can write to"
    )


def _check_checkpoint_folder(config: TrainerConfig, folder: Path) -> None:
    """Refuse checkpoints kept elsewhere that another run writes, before anything is moved or built."""
    elsewhere = folder / config.checkpoint.folder
    is_inside = elsewhere.resolve().is_relative_to(folder.resolve())
    if config.checkpoint.enabled and not is_inside and elsewhere.is_dir():
        store = Store(elsewhere)
        try:
            store.lock()
        except OSError:  # the checkpoint manager says what is wrong with it
            return
        store.close()


def set_aside(path: Path) -> Path:
    """Rename a file or folder to the first free of `<name>.1`, `<name>.2`, ... and say which."""
    free = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    kept = next(candidate for candidate in free if not os.path.lexists(candidate))
    path.rename(kept)
    return kept


def _move_away(folder: Path) -> Path:
    try:
        return set_aside(folder)
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
    """Refuse to move the user's own working folder away because an earlier run wrote into it."""
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"job.dump_folder is {folder}, where an earlier run left its files",
            why="a new run would move the folder aside, and you are working inside it",
            do="choose another --job.dump_folder, or --checkpoint.load latest to continue the earlier run",
        )
