"""Everything a run needs to continue as if it had never stopped: what is saved, and how it is put back."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from monograph.config.json_form import to_json
from monograph.errors import CheckpointError, ConfigError
from monograph.train.checkpoint.verify import MODEL_PREFIX, OPTIMIZER_PREFIX
from monograph.train.config import TrainerConfig, TrainingConfig
from monograph.train.data.cursor import Cursor
from monograph.train.data.loader import DataLoader
from monograph.train.lr_plan import LrPlan
from monograph.train.optimizer import Optimizer
from monograph.train.saved_settings import describe_settings, find_data_flags
from monograph.train.step import Step


@dataclass(kw_only=True)
class Position:
    """How far the run has come."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    tokens: int = 0


def collect_tensors(step: Step, optimizer: Optimizer) -> dict[str, Tensor]:
    """The tensors of a checkpoint by key; parameters and optimizer state are the live ones, not copies."""
    tensors = {f"{MODEL_PREFIX}{name}": value for name, value in step.state().items()}
    for (kind, name), value in optimizer.state().items():
        tensors[f"{OPTIMIZER_PREFIX}{kind}/{name}"] = step.laid_out_like(name, value)
    return tensors | read_rng(step.device)


def collect_values(
    position: Position, data: DataLoader, config: TrainerConfig, plan: LrPlan, *, global_batch: int
) -> dict[str, Any]:
    """The plain values of a checkpoint; the data's fingerprint proves on resume that the cursor means the same.

    The model's config makes the checkpoint a model by itself, for export and for fine-tuning. The other settings are
    compared with those of a run that continues, and the plan of the learning rate is continued with it.
    """
    return {
        "step": position.step,
        "tokens": position.tokens,
        "cursor": position.cursor.to_json(),
        "data": data.fingerprint(),
        "revisions": dict(data.revisions.found),
        "bookmark": data.find_bookmark(position.cursor),
        "global_batch": global_batch,
        "model": to_json(config.model),
        "settings": describe_settings(config),
        "lr_plan": plan.to_json(),
    }


def restore_position(values: Mapping[str, Any], data: DataLoader) -> Position:
    """The position a checkpoint was saved at, refused when the data is not the data it was counted on."""
    check_resumable(values)
    data.check_fingerprint(values["data"])
    data.use_bookmark(values.get("bookmark"))
    return Position(step=values["step"], cursor=Cursor.from_json(values["cursor"]), tokens=values["tokens"])


def check_resumable(values: Mapping[str, Any]) -> None:
    """Refuse a checkpoint that does not say where its run stood."""
    missing = [name for name in ("step", "tokens", "cursor", "data") if name not in values]
    if missing:
        raise CheckpointError(
            "the checkpoint does not say where its run stood",
            why=f"its values have no {' and no '.join(missing)}",
            do="take the weights alone: --checkpoint.load_model_only true",
        )


def check_position(values: Mapping[str, Any], data: DataLoader, config: TrainerConfig, *, parts: int) -> None:
    """Refuse data and a batch that a checkpoint cannot be continued with, before a model is built to load it into."""
    if "data" in values:
        check_global_batch(values, config.training, now=find_global_batch(config.training, parts))
        data.check_fingerprint(values["data"], do=suggest_data(values, config))
        restore_position(values, data)


def suggest_data(values: Mapping[str, Any], config: TrainerConfig) -> str:
    """Flags that go on with the data of the saved run, and those that begin a run with other data from its weights."""
    folder = config.job.dump_folder
    anew = f"--checkpoint.load '' --model.from {shlex.quote(folder)} --job.dump_folder {shlex.quote(folder + '-more')}"
    flags = " ".join(find_data_flags(values, config))
    return (f"{flags} to go on; or " if flags else "") + f"{anew} for a new run from the saved weights"


def find_global_batch(training: TrainingConfig, parts: int) -> int:
    """Sequences in one update, of which every part of the data has its share."""
    return training.local_batch_size * parts if training.global_batch_size == -1 else training.global_batch_size


def check_global_batch(values: Mapping[str, Any], training: TrainingConfig, *, now: int) -> None:
    """Refuse a global batch that changed by itself: with -1 it follows the number of ranks, and so would the training.

    Whoever writes another number wants it. Checkpoints of earlier versions do not say what theirs was.
    """
    before = values.get("global_batch", now)
    if before != now and training.global_batch_size == -1:
        raise ConfigError(
            f"training.global_batch_size is -1, which is {now} sequences on these ranks; the checkpoint was saved with "
            f"{before}",
            why="another number of ranks would change the training",
            do=f"--training.global_batch_size {before} keeps it, --training.global_batch_size {now} changes it",
        )


def seed_rng(seed: int) -> None:
    """Start torch's own generators anew, for whatever draws from them; first weights and data do not."""
    torch.manual_seed(seed)


def read_rng(device: torch.device) -> dict[str, Tensor]:
    """The random number generators' states."""
    states = {"rng/cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["rng/cuda"] = torch.cuda.get_rng_state(device)
    return states


def restore_rng(states: dict[str, Tensor], device: torch.device) -> None:
    """Put back what `read_rng` returned, after a checkpoint was read into it."""
    torch.set_rng_state(states["rng/cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states["rng/cuda"], device)
