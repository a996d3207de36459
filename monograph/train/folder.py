"""The run's folder: a new run never writes over an old one, and the config that made it lies inside."""

import itertools
import json
from pathlib import Path

from monograph.config.json_form import to_json
from monograph.errors import ConfigError
from monograph.log import get_log
from monograph.parallel.groups import Groups
from monograph.train.config import TrainerConfig

log = get_log("folder")
_TRACES_OF_A_RUN = ("metrics.jsonl", "checkpoints", "config.json")


def claim_folder(folder: Path, groups: Groups, *, is_resuming: bool) -> Path:
    """Make the folder ready, all ranks together."""
    if groups.rank == 0 and not is_resuming:
        make_room(folder)
    groups.wait()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"job.dump_folder is {folder}", why=f"it cannot be created: {error}", do="choose a folder you can write to"
        ) from None
    return folder


def make_room(folder: Path) -> None:
    """Before a fresh run: move what an earlier run left here to `<folder>.1`, `.2`, ...: nothing is lost."""
    if any((folder / name).exists() for name in _TRACES_OF_A_RUN):
        _check_movable(folder)
        kept = set_aside(folder)
        log.info("an earlier run was in %s; it is now in %s (--checkpoint.load latest would continue it)", folder, kept)


def set_aside(path: Path) -> Path:
    """Rename a file or folder to the first free of `<name>.1`, `<name>.2`, ... and say which."""
    free = (path.with_name(f"{path.name}.{number}") for number in itertools.count(1))
    kept = next(candidate for candidate in free if not candidate.exists())
    path.rename(kept)
    return kept


def _check_movable(folder: Path) -> None:
    """Refuse to move the user's own working folder away because an earlier run wrote into it."""
    if Path.cwd().is_relative_to(folder.resolve()):
        raise ConfigError(
            f"job.dump_folder is {folder}, where an earlier run left its files",
            why="a new run would move the folder aside, and you are working inside it",
            do="choose another --job.dump_folder, or --checkpoint.load latest to continue the earlier run",
        )


def write_config(config: TrainerConfig, folder: Path) -> None:
    """Keep the whole config with the run, as JSON that `from_json` reads back without loss."""
    (folder / "config.json").write_text(json.dumps(to_json(config), indent=1) + "\n", encoding="utf-8")
