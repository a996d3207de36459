"""The checkpoints of a folder in the order in which they were committed, also while a run changes it. Without torch."""

from dataclasses import dataclass, field
from pathlib import Path

from monograph.log import get_log
from monograph.train.checkpoint.manifest import ManifestHead
from monograph.train.checkpoint.manifest_file import DamagedError, GoneError, read_head
from monograph.train.checkpoint.store import LOOKS, Store, find_step

log = get_log(__name__)


@dataclass
class OrderedHeads:
    """Checkpoints of a folder with an intact manifest, newest first."""

    heads: list[tuple[Path, ManifestHead]] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)
    """Checkpoints that cannot be put in order, with the reason."""


def order_newest_first(store: Store) -> OrderedHeads:
    """Read the manifests of all checkpoints. A step is no measure: a run may have gone back to an earlier one.

    A run that trains may delete what was listed, after it has written a newer one: the folder is listed again.
    """
    for _ in range(LOOKS):
        ordered, gone = OrderedHeads(), 0
        for path in store.find_all():
            try:
                ordered.heads.append((path, read_head(path)))
            except GoneError:
                gone += 1
            except DamagedError as damage:
                ordered.rejected.append(f"{path.name}/{damage.file}: {damage.reason}")
                log.warning("%s is damaged and passed over: %s: %s", path, damage.file, damage.reason)
        if ordered.heads or not gone:
            break
    ordered.heads.sort(key=lambda found: (found[1].sequence, find_step(found[0]) or 0, found[0]), reverse=True)
    return ordered
