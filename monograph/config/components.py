"""A section's class by name: `--optimizer package.module:Lion.Config` puts another Config where one stands.

Any nested Config may be replaced by a subclass of what its field is annotated with. Built-in components stand there in
the same way, so a user's class can do whatever ours can. The new section starts from the defaults of its class; fields
without a default keep the value that a field of the same name and type had before, or take their flag's.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from monograph.config.annotations import find_annotations, find_container, find_element, find_members
from monograph.config.configurable import BaseConfig, find_owner, has_configs, walk_configs
from monograph.config.references import import_reference, name_of
from monograph.errors import ConfigError, find_nearest


@dataclass(frozen=True)
class ConfigSlot:
    """A field that holds a nested Config, or may hold one."""

    path: str
    bases: tuple[type[BaseConfig], ...]
    """The Config classes of its annotation: what stands here derives from one of them."""
    is_only_config: bool
    """Whether it takes nothing else (but None)."""
    value: Any
    """What stands there now."""


def find_slots(config: BaseConfig) -> Iterator[ConfigSlot]:
    """Every field that takes a nested Config, outermost first; entries of lists and dicts one by one."""
    for path, section in walk_configs(config):
        for name, annotation in find_annotations(type(section)).items():
            value, where = getattr(section, name), f"{path}.{name}" if path else name
            if has_configs(value):
                container = next(each for each in find_members(annotation) if find_container(each))
                entries = value.items() if isinstance(value, dict) else enumerate(value)
                yield from (make_slot(f"{where}.{key}", find_element(container, 0), each) for key, each in entries)
            else:
                yield make_slot(where, annotation, value)


def make_slot(path: str, annotation: Any, value: Any) -> ConfigSlot:
    """The slot of one field; it has no bases where the annotation names no Config."""
    members = [each for each in find_members(annotation) if each is not type(None)]
    bases = tuple(each for each in members if isinstance(each, type) and issubclass(each, BaseConfig))
    return ConfigSlot(path, bases, len(bases) == len(members), value)


def find_slot(config: BaseConfig, path: str) -> ConfigSlot | None:
    """The slot at a dotted path; None where no Config can stand."""
    return next((slot for slot in find_slots(config) if slot.path == path and slot.bases), None)


def choose_class(slot: ConfigSlot, word: str) -> type[BaseConfig]:
    """The Config class that a word names: package.module:Config, package.module:Component, or a known component."""
    known = find_known(slot.bases)
    found = known.get(word) or next((kind for kind in known.values() if kind.owner == word), None)
    if found is None and ":" not in word:
        nearest = find_nearest(word, known)
        raise ConfigError(
            f"--{slot.path} {word}",
            why=f"it takes a Config class as package.module:Class, derived from {name_bases(slot)}; "
            f"known by name: {', '.join(known) or 'none'}",
            do=f"did you mean --{slot.path} {nearest}?" if nearest else f"--{slot.path} package.module:Class",
        )
    thing = found or import_reference(word)
    kind = thing if is_config_class(thing) else getattr(thing, "Config", None)
    if is_config_class(kind) and issubclass(kind, slot.bases) and not is_abstract(kind):
        if kind is not thing and kind.owner is not None and find_owner(kind) is not thing:
            raise ConfigError(
                f"--{slot.path} {word}",
                why=f"its Config is inherited, and builds {find_owner(kind).__qualname__}",
                do=f"give it one of its own: class Config({kind.__qualname__}), a dataclass(kw_only=True, slots=True)",
            )
        return kind
    what = f"is a {_name_kind(thing)} without a Config class"
    if is_config_class(kind):
        what = f"is {name_of(kind)}" + (", which only says what they have in common" if is_abstract(kind) else "")
    nearest = find_nearest(word.rpartition(":")[2].removesuffix(".Config"), known)
    raise ConfigError(
        f"--{slot.path} {word}",
        why=f"{slot.path} takes a Config derived from {name_bases(slot)}, and {word} {what}",
        do=f"did you mean --{slot.path} {nearest}?" if nearest else f"known by name: {', '.join(known)}",
    )


def _name_kind(thing: Any) -> str:
    return "class" if isinstance(thing, type) else type(thing).__name__


def is_config_class(thing: Any) -> TypeGuard[type[BaseConfig]]:
    """Whether this is a Config class."""
    return isinstance(thing, type) and issubclass(thing, BaseConfig)


def is_abstract(kind: type[BaseConfig]) -> bool:
    """Whether the class is only a base of others and builds nothing itself."""
    return bool(kind.__dict__.get("is_base"))


def name_bases(slot: ConfigSlot) -> str:
    """The allowed base classes, by the names under which they are imported."""
    return " or ".join(name_of(base) for base in slot.bases)


def find_known(bases: tuple[type[BaseConfig], ...]) -> dict[str, type[BaseConfig]]:
    """Name of the component -> Config class, for every loaded class that could stand there; nothing is imported."""
    found: dict[str, type[BaseConfig]] = {}
    waiting = list(bases)
    while waiting:
        kind = waiting.pop(0)
        waiting += kind.__subclasses__()
        if _is_current(kind) and not is_abstract(kind):
            found.setdefault(name_component(kind), kind)
    return found


def name_component(kind: type[BaseConfig]) -> str:
    """The name of what a Config builds: Lion for Lion.Config; its own for settings that build nothing."""
    owner = kind.__dict__.get("owner")
    if isinstance(owner, str):
        return owner.partition(":")[2]
    return getattr(owner, "__qualname__", kind.__qualname__)


def _is_current(kind: type[BaseConfig]) -> bool:
    """Whether the class can be found by its name; not so the one that `dataclass(slots=True)` made anew."""
    try:
        name_of(kind)
    except ConfigError:
        return False
    return True


def find_required(kind: type[BaseConfig]) -> list[str]:
    """The fields of a Config class that have no default."""
    missing = dataclasses.MISSING
    return [each.name for each in dataclasses.fields(kind) if each.default is missing is each.default_factory]


def build_replacement(kind: type[BaseConfig], old: Any, given: Mapping[str, Any], path: str) -> BaseConfig:
    """The new section: defaults of its class, and for required fields what `given` or the old section says."""
    annotations = find_annotations(kind)
    kept = find_annotations(type(old)) if isinstance(old, BaseConfig) else {}
    values = {}
    for name in find_required(kind):
        if name in given:
            values[name] = given[name]
        elif kept.get(name) == annotations[name]:
            values[name] = getattr(old, name)
        else:
            raise ConfigError(
                f"--{path}.{name} is missing", why=f"{name_of(kind)} has no default for it", do=f"--{path}.{name} VALUE"
            )
    return kind(**values)
