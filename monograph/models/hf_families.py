"""The families that Hugging Face checkpoints can be turned into: those of the package, and models of a user's own."""

import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path

from monograph import models
from monograph.config.configurable import find_owner
from monograph.config.references import load_reference
from monograph.errors import ConfigError, did_you_mean
from monograph.models.hf_map import HfFamily
from monograph.models.model_config import ModelConfig
from monograph.system.foreign_text import show


def list_families() -> dict[str, HfFamily]:
    """`model_type` of a config.json -> the family's map: those of the package, then those of loaded models."""
    found: dict[str, HfFamily] = {}
    for family in [*load_own_families(), *find_loaded_families(ModelConfig)]:
        found |= {model_type: family for model_type in family.MODEL_TYPES if model_type not in found}
    return found


def load_own_families() -> Iterator[HfFamily]:
    """The map of every family in the package: `hf.py` of its folder."""
    for each in pkgutil.iter_modules(models.__path__):
        if each.ispkg:
            name = f"{models.__name__}.{each.name}.hf"
            load_reference(f"{name}:MODEL_TYPES")
            yield sys.modules[name]


def find_loaded_families(kind: type[ModelConfig]) -> Iterator[HfFamily]:
    """The maps of a user's own models, whose Configs are loaded; those of the package have theirs in `hf.py`."""
    for each in kind.__subclasses__():
        is_own = each.owner is not None and not each.__module__.startswith(f"{models.__name__}.")
        family: HfFamily | None = getattr(find_owner(each), "hf", None) if is_own else None
        if family is not None:
            yield family
        yield from find_loaded_families(each)


def find_family(model_type: object, file: Path = Path("config.json")) -> HfFamily:
    """Hugging Face map of the `model_type` that `file`, a config.json, gives."""
    known = list_families()
    if not isinstance(model_type, str) or model_type not in known:
        stated = f"unsupported model_type '{show(model_type)}'" if model_type is not None else "no model_type"
        raise ConfigError(
            f"{stated} in {show(file)}",
            why=f"supported: {', '.join(known)}",
            do=did_you_mean(str(model_type), known),
        )
    return known[model_type]


def find_family_of(config: ModelConfig) -> HfFamily:
    """The map of one of our configs, or of a user's own."""
    family: HfFamily | None = getattr(find_owner(type(config)), "hf", None)
    if family is None:
        raise ConfigError(
            f"{type(config).__qualname__} has no Hugging Face map",
            why="its model class does not set `hf`",
            do="set hf = ... in the model class; docs/guides/own_model.md shows one",
        )
    return family
