"""The settings that a checkpoint was saved with, compared with those of the run that loads it. Loads without torch.

A model's settings are part of its weights: with another RoPE base the same weights are another model. They must be the
same, except for those in TRAINING_ONLY. All other settings may change between two starts of a run, and are told.
"""

import shlex
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from monograph.config.configurable import BaseConfig
from monograph.config.json_form import to_json
from monograph.config.origins import find_defaults
from monograph.config.text import format_value, format_words
from monograph.errors import CheckpointError
from monograph.log import get_log
from monograph.train.config import TrainerConfig

TRAINED_AS = (
    "model.kernels",
    "model.*.kernel",
    "model.*.backend",
    "model.loss.*",
    "model.dropout",
    "model.mask",
    "model.max_documents",
    "model.moe.balance.*",
    "model.moe.router.bias_update_rate",
    "model.moe.router.force_balance",
)
"""Fields of a model that say how whatever weights are trained or run; `*` stands for any names."""
TRAINING_ONLY = (*TRAINED_AS, "model.init_std", "model.rope.max_seq_len")
"""Fields of a model that do not change what its weights mean."""
SECTIONS = (
    *("training", "optimizer", "lr_scheduler", "dataloader", "tokenizer", "validator"),
    *("parallelism", "compile", "passes", "activation_checkpoint", "debug"),
)
"""What decides the numbers of a run besides its model."""
STATE_FORM = ("training.dtype", "optimizer.store_param_remainders")
"""Settings that decide which tensors hold weights and optimizer state: a run can be resumed with the same ones only."""
_OF_DATA = ("dataloader.*", "tokenizer.*", "training.seq_len", "debug.seed")
_OF_READING = (
    "dataloader.prefetch",
    "dataloader.*interval",
    "dataloader.validation_*",
    "dataloader.verify_*",
    "*.$class",
)
"""Those of data that decide how it is read, not which samples there are."""
_SILENT = ("debug.log_level", "debug.device", "compile.artifact_*", "compile.cache")
_ABSENT = "(absent)"
_SHOWN = 12

log = get_log("settings")


def describe_settings(config: TrainerConfig) -> dict[str, Any]:
    """The settings of a run that its checkpoints keep, besides the model's."""
    return {name: to_json(getattr(config, name)) for name in SECTIONS}


def find_changes(saved: Mapping[str, Any], config: BaseConfig, prefix: str) -> list[str]:
    """ "path: saved -> now" for every field that differs."""
    return [
        f"{path}: {_render(old)} -> {_render(new)}"
        for path, (old, new) in find_changed_values(saved, config, prefix).items()
    ]


def find_changed_values(saved: Mapping[str, Any], config: BaseConfig, prefix: str) -> dict[str, tuple[Any, Any]]:
    """Saved and present value of every field that differs; one that an older version did not save had its default."""
    now = dict(_flatten(to_json(config), prefix))
    before = dict(_flatten(saved, prefix))
    if before.get("tokenizer.path") and "tokenizer.allow_special" in now:
        before.setdefault("tokenizer.allow_special", True)  # versions without this field read them from texts
    defaults = {f"{prefix}.{path}": value for path, value in find_defaults(config).items()}
    found = {}
    for path in dict.fromkeys([*before, *now]):
        old, new = before.get(path, defaults.get(path, _ABSENT)), now.get(path, _ABSENT)
        if isinstance(old, tuple):
            old = list(old)
        if old != new:
            found[path] = (old, new)
    return found


def check_model(values: Mapping[str, Any], config: TrainerConfig, source: Path, *, tells: bool = True) -> None:
    """Refuse weights that were trained with other model settings, unless that is allowed; then say which."""
    saved = values.get("model")
    if not isinstance(saved, Mapping):
        return
    changes = find_changes(saved, config.model, "model")
    changed = [each for each in changes if not _matches(each.partition(":")[0], TRAINING_ONLY)]
    if changed and not config.checkpoint.allow_model_changes:
        raise CheckpointError(
            f"the model of {source} has other settings than this run's: {_shorten(changed)}",
            why="its weights were trained with them; with others they are another model",
            do="set them as saved, or --checkpoint.allow_model_changes true",
        )
    for each in changes if tells else ():
        log.warning("saved run -> this run: %s", each)


def check_state_form(values: Mapping[str, Any], config: TrainerConfig, source: Path) -> None:
    """Refuse to go on with state that was saved in another form, before a model is built for it."""
    changed = {}
    for path in STATE_FORM:
        section, _, field = path.partition(".")
        saved, now = values.get("settings", {}).get(section, {}), getattr(config, section)
        old, new = saved.get(field, find_defaults(now).get(field)), getattr(now, field, None)
        if None not in (old, new) and old != new:
            changed[path] = (old, new)
    if changed:
        flags = " ".join(f"--{path} {str(old).lower()}" for path, (old, _) in changed.items())
        raise CheckpointError(
            f"{source} was saved with " + ", ".join(f"{path} {old}, not {new}" for path, (old, new) in changed.items()),
            why="other tensors hold weights and optimizer state then, and the checkpoint does not have these",
            do=f"{flags}, or --checkpoint.load_model_only true for the weights alone",
        )


def find_setting_changes(values: Mapping[str, Any], config: TrainerConfig) -> list[str]:
    """How the settings of this run differ from those of the run it continues, without the model's."""
    saved = values.get("settings")
    if not isinstance(saved, Mapping):
        return []
    found = [
        change
        for name in SECTIONS
        if isinstance(saved.get(name), Mapping)
        for change in find_changes(saved[name], getattr(config, name), name)
    ]
    return [each for each in found if not _matches(each.partition(":")[0], _SILENT)]


def find_data_flags(values: Mapping[str, Any], config: TrainerConfig) -> list[str]:
    """Flags with which a run reads what the run that it continues has read."""
    saved = values.get("settings", {})
    changed: dict[str, tuple[Any, Any]] = {}
    for name in ("dataloader", "tokenizer", "training", "debug"):
        if isinstance(saved.get(name), Mapping):
            changed |= find_changed_values(saved[name], getattr(config, name), name)
    return [
        f"--{path} {format_words(old) or shlex.quote('')}"
        for path, (old, _) in changed.items()
        if _matches(path, _OF_DATA) and not _matches(path, _OF_READING) and old != _ABSENT
    ]


def _flatten(data: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in data.items():
        is_section = isinstance(value, Mapping) and ("$class" in value or not any(key[0] == "$" for key in value))
        if is_section:
            yield from _flatten(value, f"{prefix}.{name}")
        else:
            yield f"{prefix}.{name}", value


def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _render(value: Any) -> str:
    return value if value is _ABSENT else format_value(value)


def _shorten(changes: list[str]) -> str:
    more = f" and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
    return "; ".join(changes[:_SHOWN]) + more
