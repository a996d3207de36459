"""What a run needs from outside, looked at before torch is imported and before a model is built: data, tokenizer,
optional packages, the checkpoint it starts from. Loads without torch.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from monograph.config.json_form import to_json
from monograph.errors import CheckpointError
from monograph.machine.gpu_files import check_gpu_files
from monograph.manifest.fields import ManifestError
from monograph.system.foreign_json import UnusableFile
from monograph.train.checkpoint.config import AUTO, LATEST
from monograph.train.checkpoint.manifest import ManifestHead, parse_head
from monograph.train.checkpoint.manifest_file import read_manifest_bytes
from monograph.train.checkpoint.model_source import MODEL_VALUE, open_source
from monograph.train.checkpoint.store import Store, describe_choices, is_checkpoint, refuse_path
from monograph.train.config import TrainerConfig
from monograph.train.data.checks import check_vocab
from monograph.train.data.config import BUILTIN, HUB_PREFIX
from monograph.train.data.first_look import check_beginning
from monograph.train.data.stream import check_hub_package
from monograph.train.data.tokenizer_config import StandardTokenizerConfig
from monograph.train.input_folders import check_input_folders, find_datasets
from monograph.train.lr_plan import plan_lr
from monograph.train.replicas.config import check_torchft
from monograph.train.saved_settings import check_model, check_state_form
from monograph.train.sinks import check_installed


def check_before_start(config: TrainerConfig) -> None:
    """Refuse a run whose inputs are not there."""
    check_gpu_files(config.debug.device)
    check_installed([name for name in ("tensorboard", "wandb") if getattr(config.metrics, name)])
    if config.fault_tolerance.replicas:
        check_torchft()
    check_input_folders(config)
    check_datasets(config)
    if type(config.tokenizer) is StandardTokenizerConfig and config.dataloader.source is None:
        check_vocab(config.tokenizer.build(), config.model.find_vocab_size())
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:  # several ranks meet first, so that the first can tell the others
        check_checkpoint(config)


def check_datasets(config: TrainerConfig) -> None:
    """Every dataset that is read by its name exists and begins with documents that can be read."""
    for name in find_datasets(config):
        if name.startswith(HUB_PREFIX):
            check_hub_package(name)
        elif name != BUILTIN:
            check_beginning(Path(name), text_field=config.dataloader.text_field, seq_len=config.training.seq_len)


def check_checkpoint(config: TrainerConfig) -> None:
    """There is a checkpoint to load, of this model, with a schedule that this run can continue."""
    found, is_continued = _find_start(config)
    if found is None and config.checkpoint.initial_load_path:
        check_pretrained(config, Path(config.checkpoint.initial_load_path))
    manifest = _read_head(found) if found is not None else None
    if found is None or manifest is None:
        return
    check_model(manifest.values, config, found, tells=False)
    if is_continued:
        check_state_form(manifest.values, config, found)
    if is_continued and isinstance(manifest.values.get("step"), int):
        plan_lr(
            config.lr_scheduler,
            peak=config.optimizer.lr,
            steps=config.training.steps,
            done=manifest.values["step"],
            saved=manifest.values.get("lr_plan"),
        )


def check_pretrained(config: TrainerConfig, path: Path) -> None:
    """The folder that weights come from is Hugging Face's, of this model."""
    if not path.is_dir():
        reason = "it is a file" if path.exists() else "there is no such folder"
        raise CheckpointError(f"checkpoint.initial_load_path is {path}", why=reason, do="check the path")
    source = open_source(str(path))
    if not source.is_hf:
        raise CheckpointError(
            f"checkpoint.initial_load_path is {path}",
            why="it is the folder of a run; its checkpoints are in a folder inside",
            do=f"--checkpoint.initial_load_path {source.weights}",
        )
    check_model({MODEL_VALUE: to_json(source.model)}, config, path, tells=False)


def read_continued(config: TrainerConfig) -> Mapping[str, Any]:
    """The values in the checkpoint that this run probably continues; none when it begins anew."""
    found, is_continued = _find_start(config)
    manifest = _read_head(found) if found is not None and is_continued else None
    return manifest.values if manifest is not None else {}


def _find_start(config: TrainerConfig) -> tuple[Path | None, bool]:
    """The checkpoint that a run starts from, and whether it goes on from there, with more than the weights."""
    which = config.checkpoint.load
    store = Store(Path(config.job.dump_folder) / config.checkpoint.folder)
    found = find_checkpoint(store, which) if which else None
    if found is None and config.checkpoint.initial_load_path:
        return find_checkpoint(store, config.checkpoint.initial_load_path, is_required=False), False
    return found, found is not None and not config.checkpoint.load_model_only


def find_checkpoint(store: Store, which: str, *, is_required: bool = True) -> Path | None:
    """The checkpoint that is probably meant: the newest one where several are; damage is found when it is loaded."""
    if which in (LATEST, AUTO):
        newest = _find_newest(store)
        if newest is None and which == LATEST and not store.has_replaced():
            raise CheckpointError(
                "there is no intact checkpoint",
                why=describe_choices(store),
                do="--checkpoint.load '' (from scratch), or a path to another one",
            )
        return newest
    if which.isascii() and which.isdigit():
        path = store.step_path(int(which))
        if not path.is_dir() and not store.has_replaced():
            raise CheckpointError(f"there is no checkpoint of step {which}", do=describe_choices(store))
        return path if path.is_dir() else None
    path = Path(which)
    found = path if is_checkpoint(path) else _find_newest(Store(path))
    if found is None and is_required:
        raise refuse_path(store, path)
    return found


def _find_newest(store: Store) -> Path | None:
    """The one that was committed last; a run may have gone back to an earlier step."""
    manifests = [(path, _read_head(path)) for path in store.find_all()]
    known = [(manifest.sequence, path) for path, manifest in manifests if manifest is not None]
    return max(known)[1] if known else next((path for path, _ in reversed(manifests)), None)


def _read_head(path: Path) -> ManifestHead | None:
    try:
        return parse_head(read_manifest_bytes(path))
    except (OSError, ManifestError, UnusableFile):
        return None
