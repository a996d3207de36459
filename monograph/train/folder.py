"""The run's folder: a new run never writes over an old one, and the config that made it lies inside."""

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
    """Make the folder ready. A fresh run moves what an earlier run left to `<folder>.1`, `.2`, ...: nothing is lost."""
    if groups.rank == 0 and not is_resuming and any((folder / name).exists() for name in _TRACES_OF_A_RUN):
        kept = next(p for n in range(1, 10_000) if not (p := folder.with_name(f"{folder.name}.{n}")).exists())
        folder.rename(kept)
        log.info("an earlier run was in %s; it is now in %s (--checkpoint.load latest would continue it)", folder, kept)
    groups.wait()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"job.dump_folder is {folder}", why=f"it cannot be created: {error}", do="choose a folder you can write to"
        ) from None
    return folder


def write_config(config: TrainerConfig, folder: Path) -> None:
    """Keep the whole config with the run, as JSON that `from_json` reads back without loss."""
    (folder / "config.json").write_text(json.dumps(to_json(config), indent=1) + "\n", encoding="utf-8")
