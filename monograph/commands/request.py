"""From command-line words to a checked configuration: recipe first, then flags, then consistency."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from monograph.config.configurable import BaseConfig, check_config, check_types, walk_configs
from monograph.config.leaves import find_leaves, replace_leaf
from monograph.config.origins import Origin, find_origins
from monograph.config.overrides import Override, apply_overrides, split_flags
from monograph.elsewhere.answer import explain_flags
from monograph.errors import ConfigError
from monograph.recipes.catalog import find_recipes, load_recipe
from monograph.recipes.pretrained import MODEL_FROM, start_from
from monograph.train.config import TrainerConfig
from monograph.train.unused_settings import check_unused, reset_unused

QUIET = {"metrics.progress": "off", "debug.log_level": "warning"}
"""What `--quiet` stands for."""


@dataclass(frozen=True)
class Request:
    """A recipe as the user changed it, the origin of each value, and the command's own options."""

    recipe: str
    config: TrainerConfig
    origins: dict[str, Origin]
    options: dict[str, Any]
    words: list[str]
    """The recipe and its flags as written, without the command's own options: how to ask for the same again."""


def read_request(
    arguments: Sequence[str], options: BaseConfig, *, is_checked: bool = True, uses: Sequence[str] = ()
) -> Request:
    """RECIPE and flags. Help is shown for a configuration as it stands, consistent or not.

    `uses` are fields that the command reads for itself, whatever the configuration makes of them.
    """
    name, words = split_recipe(arguments)
    own = [leaf.path for leaf in find_leaves(options)]
    options = apply_overrides(options, [word for word in words if word.path in own])
    origin = [word for word in words if word.path == MODEL_FROM]
    flags = [word for word in words if word.path not in (*own, MODEL_FROM)]
    recipe = load_start(name, origin, [flag.path for flag in flags])
    config = apply_overrides(recipe, flags, also_known=(*own, MODEL_FROM))
    if is_checked:
        config = reset_and_check(recipe, config, [flag.path for flag in flags], uses=uses)
        check_config(options)
    origins = find_origins(config, [flag.path for flag in flags])
    written = [name] * bool(name)
    written += [word for flag in (*origin, *flags) for word in (f"--{flag.path}", *flag.words)]
    return Request(
        name or " ".join(map(str, origin)),
        config,
        origins,
        {leaf.path: leaf.value for leaf in find_leaves(options)},
        written,
    )


def split_recipe(arguments: Sequence[str]) -> tuple[str, list[Override]]:
    """The recipe's name and the flags after it; the name may be left out where a flag names a folder with a model."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0], split_flags(arguments[1:])
    flags = split_flags(arguments)
    if any(flag.path == MODEL_FROM for flag in flags):
        return "", flags
    first = next(iter(find_recipes()))
    what = f"a recipe must come before {arguments[0]}" if arguments else "a recipe is missing"
    why = "the recipe defines the fields"
    do = f"for example {first}; see: monograph recipes; or --{MODEL_FROM} FOLDER with a model"
    known = [leaf.path for leaf in find_leaves(load_recipe(first))]
    flags_elsewhere = [(flag.path, flag.words) for flag in flags if flag.path not in known]
    if answer := explain_flags(flags_elsewhere, [*known, MODEL_FROM]):
        _, found, instead = answer
        why, do = f"{why}; of the others, {found}", f"{do}\n{instead}"
    raise ConfigError(what, why=why, do=do)


def load_start(name: str, origin: Sequence[Override], flags: Sequence[str]) -> TrainerConfig:
    """The recipe before flags: of a name, from a folder with a model, or both."""
    recipe = load_recipe(name) if name else None
    if not origin:
        assert recipe is not None
        return recipe
    if len(origin) > 1:
        raise ConfigError(f"--{MODEL_FROM} is given twice: {origin[0]} and {origin[1]}", do="remove one")
    if len(origin[0].words) != 1:
        raise ConfigError(f"{origin[0]}", why=f"--{MODEL_FROM} takes one folder", do=f"--{MODEL_FROM} FOLDER")
    has_tokenizer = any(flag.split(".")[0] == "tokenizer" for flag in flags)
    return start_from(origin[0].words[0], recipe, needs_tokenizer=not has_tokenizer)


def make_quiet(request: Request) -> Request:
    """The same with the flags that `--quiet` stands for, where they are not given."""
    config, words = request.config, [*request.words]
    for path, value in QUIET.items():
        if request.origins.get(path) != "flag":
            config, words = replace_leaf(config, path, value), [*words, f"--{path}", value]
    return replace(request, config=config, words=words)


def reset_and_check(
    recipe: TrainerConfig, config: TrainerConfig, flags: Sequence[str], *, uses: Sequence[str] = ()
) -> TrainerConfig:
    """The checked configuration: what a recipe set for something that a flag switches off is back at its default.

    The fields in `uses` have the values they were given, whether or not the configuration alone would read them.
    """
    for path, section in walk_configs(config):
        check_types(section, path)
    check_unused(recipe)
    given = {leaf.path: leaf.value for leaf in find_leaves(config) if leaf.path in uses}
    flags = [flag for flag in flags if flag not in uses]
    config = reset_unused(config, flags=flags)
    check_config(config)
    check_unused(config, flags=flags)
    for path, value in given.items():
        config = replace_leaf(config, path, value)
    return config


def read_arguments(
    kind: type[BaseConfig],
    positional: Sequence[str],
    arguments: Sequence[str],
    *,
    optional: Sequence[str] = (),
    needs: str = "",
    usage: str = "",
) -> Any:
    """Read the arguments of a command without a recipe: leading words fill the positional fields, then come flags.

    When a positional one is missing, the error says what the command `needs` and shows its `usage`.
    """
    names = [path.upper() for path in positional]
    count = next((index for index, word in enumerate(arguments) if word.startswith("--")), len(arguments))
    if count > len(positional):
        raise ConfigError(f"unexpected argument '{arguments[len(positional)]}'", do=usage or f"write {' '.join(names)}")
    placed = [Override(path, (word,)) for path, word in zip(positional, arguments[:count], strict=False)]
    flags = [*placed, *split_flags(arguments[count:])]
    config = apply_overrides(kind(), flags)
    given = {flag.path for flag in flags}
    for path, name in zip(positional, names, strict=True):
        if path not in given and path not in optional:
            missing = f"{name} is missing"
            raise ConfigError(needs or missing, why=missing if needs else "", do=usage)
    check_config(config)
    return config
