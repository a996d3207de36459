"""Finding a recipe by name: one of ours, by its function's name, or a user's own, as package.module:function."""

import inspect
import pkgutil
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monograph import recipes as folder
from monograph.config.python_form import make_identifier
from monograph.config.references import describe_exception, import_reference, load_reference
from monograph.errors import ConfigError, MonographError, find_nearest
from monograph.train.checkpoint.hf_source import HUB_NAME
from monograph.train.config import TrainerConfig

Recipe = Callable[[], TrainerConfig]

_FILES = (".py", ".toml", ".json", ".yaml", ".yml")
LAST = "bench"
"""What is for measuring comes after the families."""


def find_recipes() -> dict[str, Recipe]:
    """Name -> recipe, file by file. A recipe is a public function of a file in this folder that takes nothing and
    returns a TrainerConfig; its name is unique."""
    names = [each.name for each in pkgutil.iter_modules(folder.__path__)]
    recipes: dict[str, Recipe] = {}
    for file in sorted(names, key=lambda name: (name == LAST, name)):
        for name, function in load_reference(f"{folder.__name__}.{file}:__dict__").items():
            if is_recipe(function, f"{folder.__name__}.{file}"):
                if name in recipes:
                    raise TypeError(f"two recipes are called {name}")
                recipes[name] = function
    return recipes


def is_recipe(value: Any, module: str) -> bool:
    """Whether something in a module is one of its recipes."""
    if not inspect.isfunction(value) or value.__module__ != module or value.__name__.startswith("_"):
        return False
    signature = inspect.signature(value)
    return not signature.parameters and signature.return_annotation is TrainerConfig


def find_recipe(name: str) -> Recipe:
    """The recipe of that name; ConfigError with the nearest name when there is none."""
    if ":" in name:
        return _import_recipe(name)
    if (Path(name) / "config.json").is_file():
        raise ConfigError(
            f"'{name}' is a folder with a model, not a recipe", do=f"monograph train --model.from {shlex.quote(name)}"
        )
    if HUB_NAME.fullmatch(name) and not name.endswith(_FILES) and not Path(name).parent.exists():
        raise _explain_hub_name(name)
    if "/" in name or name.endswith(_FILES):
        is_there = Path(name).exists()
        raise ConfigError(
            f"'{name}' is a file or folder, not a recipe"
            if is_there
            else f"there is no recipe '{name}', and no file or folder of that name",
            why="a recipe is a Python function that returns a configuration, written package.module:function",
            do=f"{_find_module(name)}:FUNCTION"
            if name.endswith(".py")
            else "see: monograph recipes" + (f"; or --model.from {name} for a model that lies there" * is_there),
        )
    recipes = find_recipes()
    if name in recipes:
        return recipes[name]
    if nearest := find_nearest(name, recipes):
        raise ConfigError(f"there is no recipe '{name}'", do=f"did you mean '{nearest}'?")
    module, _, function = name.rpartition(".")
    raise ConfigError(
        f"there is no recipe '{name}'",
        why="a recipe is one of ours, or a function of your own as package.module:function",
        do=f"did you mean '{module}:{function}'?" if module else "see: monograph recipes",
    )


def _explain_hub_name(name: str) -> ConfigError:
    """The error for organization/name: how to train that model on, and the recipe that trains one like it anew."""
    nearest = find_nearest(make_identifier(name.partition("/")[2]), find_recipes(), cutoff=0.6)
    anew = f"; with new weights: monograph train {nearest}" if nearest else ""
    return ConfigError(
        f"'{name}' is not a recipe",
        why="there is no such folder; organization/name is how the Hugging Face hub names models",
        do=f"monograph train --model.from {name} --dataloader.dataset TEXTS (downloads it; without network: "
        f"hf download {name} --local-dir FOLDER elsewhere, then --model.from FOLDER){anew}",
    )


def load_recipe(name: str) -> TrainerConfig:
    """The configuration a recipe returns. What goes wrong inside a user's recipe is reported with its place."""
    recipe = find_recipe(name)
    try:
        config = recipe()
    except MonographError:
        raise
    except Exception as error:
        raise ConfigError(f"recipe '{name}' failed", why=describe_exception(error)) from error
    if not isinstance(config, TrainerConfig):
        raise ConfigError(
            f"recipe '{name}' returned {type(config).__name__}",
            why="a recipe is a function that returns a complete Trainer.Config",
        )
    return config


def _import_recipe(name: str) -> Recipe:
    module = name.partition(":")[0]
    if module.endswith(".py") or "/" in module:
        raise ConfigError(
            f"recipe '{name}' names a file",
            why="a recipe of your own is written package.module:function",
            do=f"did you mean {_find_module(module)}:{name.partition(':')[2]}?",
        )
    recipe: Callable[[], TrainerConfig] = import_reference(name)
    if not callable(recipe):
        raise ConfigError(f"recipe '{name}' is a value of type {type(recipe).__name__}", why="a recipe is a function")
    return recipe


def _find_module(path: str) -> str:
    """The name that a file has when it is imported from the current folder."""
    return path.rstrip("/").removesuffix(".py").removeprefix("./").replace("/", ".")
