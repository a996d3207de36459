"""`--section.field value` for every field of a configuration.

Each thing a person can get wrong here (a name, a section, a type, a count) is answered with what they wrote, what the
field takes, and the nearest thing that would have worked.
"""

import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal, get_args, get_origin

from monograph.config.annotations import (
    describe,
    find_annotations,
    find_excess,
    find_members,
    find_name_lists,
    is_valid,
    make_example,
)
from monograph.config.components import (
    ConfigSlot,
    build_replacement,
    choose_class,
    find_known,
    find_required,
    find_slot,
    make_slot,
)
from monograph.config.configurable import BaseConfig
from monograph.config.docs import find_field_docs
from monograph.config.leaves import Leaf, find_leaves, find_sections, replace_leaf
from monograph.config.parse import UnparsableTypeError, is_nothing, parse_words, takes_several_words
from monograph.config.text import format_words
from monograph.elsewhere.answer import explain_flags
from monograph.errors import ConfigError, find_nearest
from monograph.plurals import counted
from monograph.renamed import find_new_name, find_replacement

_SYNONYMS = {"gpu": "cuda", "nvidia": "cuda", "fp32": "float32", "bf16": "bfloat16", "half": "bfloat16"}
"""What people write for values that have another name here."""
_CLASS_FIELDS = ("name", "type", "class", "kind")
"""What other programs call the field that chooses a component; here its section does."""
_SIMILAR = 0.45
"""Below this two names are different words, and suggesting one for the other would only confuse."""


@dataclass(frozen=True)
class Override:
    """One flag as it was written: the path it names and the words that follow it."""

    path: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join([f"--{self.path}", *(shlex.quote(word) for word in self.words)])


def split_flags(arguments: Sequence[str]) -> list[Override]:
    """Group command-line words into flags. `--a.b=v` and `--a.b v` are the same; so are `-` and `_` inside a name."""
    overrides: list[Override] = []
    for argument in arguments:
        if argument.startswith("--") and len(argument) > 2:
            name, equals, value = argument[2:].partition("=")
            overrides.append(Override(name.replace("-", "_"), (value,) if equals else ()))
        elif overrides:
            last = overrides[-1]
            overrides[-1] = Override(last.path, (*last.words, argument))
        else:
            name, equals, value = argument.lstrip("-").partition("=")
            hint = f"did you mean --{name} {value}".rstrip() + "?" if equals or "." in name else ""
            raise ConfigError(f"'{argument}' is not a flag", why="flags are written --section.field value", do=hint)
    return overrides


def apply_overrides(config: BaseConfig, overrides: Iterable[Override], *, also_known: Sequence[str] = ()) -> Any:
    """A copy of the config with every override applied. The caller checks the result as a whole.

    Classes of sections are chosen first, outer ones before inner ones, so that flags may come in any order.
    `also_known` are flags that belong to someone else, worth suggesting when a name is not known here.
    """
    given: dict[str, Override] = {}
    for override in sorted(overrides, key=lambda each: not decides_fields(config, each.path)):
        if override.path in given:
            raise ConfigError(
                f"--{override.path} is given twice: {given[override.path]} and {override}",
                why="only one of them could take effect",
                do="remove one",
            )
        given[override.path] = override
    _refuse_foreign(given, config, also_known)
    for path in sorted(given, key=lambda path: path.count(".")):
        slot = find_slot(config, path)
        if slot is not None and _names_class(given[path], slot):
            config = replace_leaf(config, path, _replace_section(slot, given))
            del given[path]
    for path, override in given.items():
        config = replace_leaf(config, path, _read_override(override, config, also_known))
    return config


def _refuse_foreign(given: Mapping[str, Override], config: BaseConfig, also_known: Sequence[str]) -> None:
    """Raise for flags that other trainers have and this configuration does not: all of them in one error."""
    own = [leaf.path for leaf in find_leaves(config)]
    sections = find_sections(config)
    flags = [
        (override.path, override.words)
        for override in given.values()
        if override.path not in (*own, *also_known)
        and not (override.path in sections and _chooses_class(override, config))
        and not _is_renamed(override.path, own)
        and not _is_inside_class(override, given)
    ]
    if answer := explain_flags(flags, [*own, *also_known], sections):
        what, why, do = answer
        raise ConfigError(what, why=why, do=do)


def _chooses_class(override: Override, config: BaseConfig) -> bool:
    """Whether the flag of a section names a class: by its module, or nearly as a loaded one is called."""
    slot = find_slot(config, override.path)
    if slot is None or not override.words:
        return False
    word, known = override.words[0], find_known(slot.bases)
    is_near = word.isidentifier() and word[0].isupper() and bool(find_nearest(word, known))
    return ":" in word or word in known or is_near or is_nothing(override.words)


def _is_renamed(path: str, paths: Sequence[str]) -> bool:
    return bool(find_replacement(path) or find_new_name(path, paths))


def _is_inside_class(override: Override, given: Mapping[str, Override]) -> bool:
    """Whether the flag belongs to a section whose class is chosen on the same line: it may have any field."""
    parents = [override.path.rsplit(".", count)[0] for count in range(1, override.path.count(".") + 1)]
    return any(parent in given for parent in parents)


def decides_fields(config: BaseConfig, path: str) -> bool:
    """Whether the value at a path decides which other fields there are."""
    section, _, name = path.rpartition(".")
    holder = find_sections(config).get(section) if section else config
    return holder is not None and name in holder.decides_fields


def _names_class(override: Override, slot: ConfigSlot) -> bool:
    if len(override.words) != 1 or is_nothing(override.words):
        return False
    word = override.words[0]
    return ":" in word or (slot.is_only_config and (word.isidentifier() or slot.value is None))


def _replace_section(slot: ConfigSlot, given: Mapping[str, Override]) -> BaseConfig:
    """The section of the class that its flag names; flags for its required fields are read here."""
    kind = choose_class(slot, given[slot.path].words[0])
    annotations, docs, names = find_annotations(kind), find_field_docs(kind), find_name_lists(kind)
    for path, override in given.items():
        if path.startswith(f"{slot.path}.") and path.removeprefix(f"{slot.path}.").split(".")[0] not in annotations:
            raise _make_unknown(override, (), [f"{slot.path}.{name}" for name in annotations])
    values: dict[str, Any] = {}
    for name in find_required(kind):
        path = f"{slot.path}.{name}"
        inner = make_slot(path, annotations[name], None)
        if path in given and inner.bases and _names_class(given[path], inner):
            values[name] = _replace_section(inner, given)
        elif path in given:
            values[name] = _read_leaf(given[path], Leaf(path, None, annotations[name], docs[name], name in names))
    return build_replacement(kind, slot.value, values, slot.path)


def _read_override(override: Override, config: BaseConfig, also_known: Sequence[str]) -> Any:
    leaves = {leaf.path: leaf for leaf in find_leaves(config)}
    if is_nothing(override.words) and _is_optional_section(override.path, config):
        return None
    if override.path not in leaves:
        raise _make_unknown(override, find_sections(config), [*leaves, *also_known])
    return _read_leaf(override, leaves[override.path])


def _read_leaf(override: Override, leaf: Leaf) -> Any:
    if not override.words and bool in find_members(leaf.annotation):
        return True
    try:
        value = _read_value(override, leaf)
    except UnparsableTypeError:
        raise ConfigError(
            f"--{leaf.path} cannot be set on the command line",
            why=f"expected {describe(leaf.annotation)}",
            do="set it in a recipe of your own",
        ) from None
    except ValueError:
        raise ConfigError(
            str(override),
            why=f"{leaf.path} takes {describe(leaf.annotation)}",
            do=_suggest_choice(override, leaf) or f"for example: {_make_example(leaf)}",
        ) from None
    if excess := "" if is_valid(value, leaf.annotation) else find_excess(value):
        raise ConfigError(
            str(override),
            why=f"{leaf.path} takes {describe(leaf.annotation)}: {excess}",
            do=f"for example: {_make_example(leaf)}",
        )
    return value


def _read_value(override: Override, leaf: Leaf) -> Any:
    if not override.words:
        raise ConfigError(
            f"--{leaf.path} has no value",
            why=f"expected {describe(leaf.annotation)}",
            do=f"for example: {_make_example(leaf)}",
        )
    if len(override.words) > 1 and not takes_several_words(leaf.annotation):
        raise _make_too_many(override, leaf)
    return parse_words(_open_brackets(override.words, leaf), leaf.annotation, has_names=leaf.has_names)


def _open_brackets(words: Sequence[str], leaf: Leaf) -> Sequence[str]:
    """`[a, b]` is two words where several are taken; with quotes inside it is JSON, which is read elsewhere."""
    word = words[0].strip()
    is_plain = word.startswith("[") and word.endswith("]") and not set(word[1:-1]) & set('[]"')
    if len(words) > 1 or not takes_several_words(leaf.annotation) or not is_plain or word == "[]":
        return words
    return [item.strip() for item in word[1:-1].split(",")]


def _is_optional_section(path: str, config: BaseConfig) -> bool:
    """Whether the path is a section that may be None: a part a recipe switched on and a flag may switch off."""
    parent, _, name = path.rpartition(".")
    holder = find_sections(config).get(parent) if parent else config
    annotation = find_annotations(type(holder)).get(name) if holder else None
    return annotation is not None and is_valid(None, annotation)


def _make_too_many(override: Override, leaf: Leaf) -> ConfigError:
    joined = " ".join(override.words)
    takes_text = str in find_members(leaf.annotation)
    return ConfigError(
        f"--{leaf.path} {joined}",
        why=f"{leaf.path} takes one value ({describe(leaf.annotation)}), got {counted(len(override.words), 'word')}",
        do=f"--{leaf.path} {shlex.quote(joined)}" if takes_text else f"for example: {_make_example(leaf)}",
    )


def _suggest_choice(override: Override, leaf: Leaf) -> str:
    choices = [
        str(choice)
        for member in find_members(leaf.annotation)
        if get_origin(member) is Literal
        for choice in get_args(member)
    ]
    word = _SYNONYMS.get(override.words[0].lower(), override.words[0])
    nearest = word if word in choices else find_nearest(word, choices)
    return f"did you mean --{leaf.path} {nearest}?" if nearest else ""


def _make_example(leaf: Leaf) -> str:
    current = "" if leaf.value is None else format_words(leaf.value)
    return f"--{leaf.path} {current or make_example(leaf.annotation)}"


def _make_unknown(override: Override, sections: Collection[str], paths: Sequence[str]) -> ConfigError:
    if override.path in sections:
        inside = [path for path in paths if path.startswith(f"{override.path}.")]
        return ConfigError(
            str(override),
            why=f"{override.path} is a section, not a value",
            do=(f"set one of its fields, such as --{inside[0]}, or " if inside else "")
            + f"choose its class: --{override.path} package.module:Class",
        )
    if do := find_replacement(override.path):
        return ConfigError(str(override), why=f"there is no field {override.path}", do=do)
    if new := find_new_name(override.path, paths):
        return ConfigError(str(override), why=f"there is no field {override.path}", do=f"it is called --{new} now")
    section, _, name = override.path.rpartition(".")
    if section in sections and name in _CLASS_FIELDS:
        return ConfigError(
            str(override),
            why=f"there is no field {override.path}: the section itself chooses the class",
            do=f"--{section} package.module:Class",
        )
    found = find_similar(override.path, paths)
    if not found:
        top = sorted({path.split(".")[0] for path in paths})
        return ConfigError(str(override), why=f"there is no field {override.path}", do=f"sections: {', '.join(top)}")
    others = f" (or {', '.join(f'--{path}' for path in found[1:])})" if len(found) > 1 else ""
    return ConfigError(
        str(override), why=f"there is no field {override.path}", do=f"did you mean --{found[0]}{others}?"
    )


def find_similar(path: str, choices: Sequence[str], limit: int = 3) -> list[str]:
    """The dotted names that look most like `path`, best first; empty when none does.

    The last name counts most, so that a forgotten or mistaken section is still recognised: `steps`, `optim.lr`.
    Only names about as close as the best one are returned.
    """
    section, _, name = path.rpartition(".")
    scores = []
    for order, choice in enumerate(choices):
        choice_section, _, choice_name = choice.rpartition(".")
        same_name, same_path = _compare(name, choice_name), 0.9 * _compare(path, choice)
        share = 0.9 if same_name == 1.0 else 0.6 if same_name > 0.5 else 0.0
        by_parts = share * same_name + (1 - share) * _compare(section, choice_section) if share else 0.0
        scores.append((-max(by_parts, same_path), choice.count("."), order, choice))
    scores.sort()
    if not scores or -scores[0][0] < _SIMILAR:
        return []
    return [choice for score, _, _, choice in scores[:limit] if score <= scores[0][0] + 0.02]


def _compare(left: str, right: str) -> float:
    if left == right:
        return 1.0
    return SequenceMatcher(None, left, right, autojunk=False).ratio()
