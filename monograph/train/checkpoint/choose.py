"""Which checkpoint a request means: `latest`, a step, or a path, and what to say when there is none."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from monograph.errors import CheckpointError
from monograph.log import get_log
from monograph.train.checkpoint.config import AUTO, LATEST
from monograph.train.checkpoint.manifest_file import DamagedError, GoneError
from monograph.train.checkpoint.newest import order_newest_first
from monograph.train.checkpoint.ranks import PeerError, Ranks
from monograph.train.checkpoint.store import LOOKS, Store, describe_choices, is_checkpoint, refuse_path
from monograph.train.checkpoint.verify import VerifiedCheckpoint, verify_held

T = TypeVar("T")

log = get_log(__name__)


@dataclass(frozen=True)
class Candidates:
    """Where to look, best first. `explicit` names one checkpoint, which is then the only acceptable one."""

    paths: list[Path]
    explicit: bool
    rejected: list[str]
    """Those that cannot even be put in order, with the reason."""


def find_candidates(store: Store, which: str | int | Path) -> Candidates:
    """What a request may mean; reads manifests, not tensors."""
    if which in (LATEST, AUTO):
        return _find_newest(store)
    if isinstance(which, int) or (isinstance(which, str) and which.isascii() and which.isdigit()):
        path = store.step_path(int(which))
        if not path.is_dir():
            raise CheckpointError(f"there is no checkpoint of step {which}", do=describe_choices(store))
        return Candidates([path], True, [])
    path = Path(which)
    try:
        is_one = is_checkpoint(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}", why=error.strerror or str(error), do="make it readable") from None
    if is_one:
        return Candidates([path], True, [])
    nested = _find_newest(Store(path))
    if nested.paths or nested.rejected:
        return nested
    raise refuse_path(store, path)


def open_best(candidates: Candidates, ranks: Ranks) -> VerifiedCheckpoint:
    """The first candidate that proves to be whole, verified; damaged ones are named in the log.

    GoneError where a candidate was deleted meanwhile: there may be a newer one, which the candidates do not list.
    """
    rejected = list(candidates.rejected)
    for path in candidates.paths:
        try:
            return verify_held(path, ranks)
        except GoneError:
            raise
        except DamagedError as damage:
            if candidates.explicit:
                raise
            rejected.append(f"{path.name}/{damage.file}: {damage.reason}")
            log.warning("%s is damaged and passed over: %s: %s", path, damage.file, damage.reason)
    raise CheckpointError(
        "there is no intact checkpoint",
        why="; ".join(rejected[:5]) or "there is none at all",
        do="start from another checkpoint, or from scratch with --checkpoint.load ''",
    )


def choose(store: Store, which: str | int | Path, ranks: Ranks) -> VerifiedCheckpoint:
    """Find, verify and agree on what `which` means; every rank gets the same answer or the same error."""
    return _open_agreed(lambda: find_candidates(store, which), ranks)


def find_latest(store: Store, ranks: Ranks) -> Path | None:
    """The newest good checkpoint; None when there is none at all. When all there are is damage, that is an error."""
    return _open_agreed(lambda: _find_newest(store), ranks).path if has_any(store, ranks) else None


def has_any(store: Store, ranks: Ranks) -> bool:
    """Whether there is a checkpoint, good or not, as the first rank sees it."""
    return bool(_agree(store.find_all, ranks))


def _open_agreed(find: Callable[[], Candidates], ranks: Ranks) -> VerifiedCheckpoint:
    """Open the best candidate; look again where a run has deleted it since it was listed."""
    for look in range(LOOKS):
        candidates = _agree(find, ranks)
        try:
            return open_best(candidates, ranks)
        except GoneError as gone:
            if candidates.explicit or look == LOOKS - 1:
                raise
            log.info("%s was deleted before it could be read; looking again", gone.path)
    raise AssertionError("the last look returns or raises")


def _agree(find: Callable[[], T], ranks: Ranks) -> T:
    """What the first rank finds, so that no two ranks can load different checkpoints."""
    try:
        found = ranks.broadcast_object(ranks.run_on_rank0(find))
    except PeerError as error:
        raise CheckpointError(
            "no checkpoint can be loaded", why=str(error), do="another --checkpoint.load, or '' to start from scratch"
        ) from None
    if found is None:
        raise AssertionError("the first rank shares what it found")
    return found


def _find_newest(store: Store) -> Candidates:
    found = order_newest_first(store)
    return Candidates([path for path, _ in found.heads], False, found.rejected)
