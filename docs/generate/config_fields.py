"""The page on every field of a configuration, from the Config classes themselves."""

import dataclasses
from collections.abc import Iterator

from docs.generate.markdown import make_cell, make_code, make_table
from docs.generate.package import find_subclasses
from monograph.config.annotations import find_annotations, find_members, name_type
from monograph.config.configurable import BaseConfig, walk_configs
from monograph.config.docs import find_field_docs, find_summary
from monograph.config.text import format_value
from monograph.recipes.catalog import find_recipes

NOT_OF_A_RUN = ("monograph.commands.", "monograph.train.checkpoint.arguments", "monograph.passes.")
"""Modules whose Configs are arguments of commands or options of passes, which have pages of their own."""


def make_config_page() -> str:
    """Every section of every recipe, each class once, then the components that no recipe uses."""
    return "\n".join(_make_lines()) + "\n"


def _make_lines() -> Iterator[str]:
    yield from ("# Configuration", "")
    yield "Every field is a flag, `--section.field value`, and a line of `monograph config RECIPE`, which says where"
    yield "its value comes from. Defaults here are those of the classes; recipes set others. A typo is an error with"
    yield "the nearest name."
    sections = find_run_sections()
    for config, (title, path) in sections.items():
        yield from ("", f"## {title}", "")
        yield from _describe(f"--{path}." if path else "--", config)
    others = [
        each
        for each in find_subclasses(BaseConfig)
        if _is_component(each) and not any(issubclass(one, each) for one in sections)
    ]
    if others:
        yield from ("", "## Components chosen by class", "")
        yield "Used by no recipe until a flag or a recipe of yours names them."
    for each in others:
        yield from ("", f"### {each.__qualname__}", "", f"`{each.__module__}:{each.__qualname__}`", "")
        yield from _describe("", each)


def find_run_sections() -> dict[type[BaseConfig], tuple[str, str]]:
    """Config class -> (heading, path in a run), for all recipes; what belongs together stands together."""
    found: dict[type[BaseConfig], tuple[str, str]] = {}
    for name, recipe in find_recipes().items():
        for path, section in walk_configs(recipe()):
            if type(section) not in found:
                title = path or "run"
                is_taken = any(each == title for each, _ in found.values())
                found[type(section)] = (f"{title} ({name.split('_debug')[0]})" if is_taken else title, path)
    order = list(dict.fromkeys(path.split(".")[0] for _, path in found.values()))
    return dict(sorted(found.items(), key=lambda item: order.index(item[1][1].split(".")[0])))


def _is_component(config: type[BaseConfig]) -> bool:
    return getattr(config, "owner", None) is not None and not config.__module__.startswith(NOT_OF_A_RUN)


def _describe(prefix: str, config: type[BaseConfig]) -> Iterator[str]:
    yield from (make_cell(find_summary(config)), "")
    annotations, docs = find_annotations(config), find_field_docs(config)
    rows = [
        (make_code(f"{prefix}{name}"), make_code(name_type(annotations[name])), default, make_cell(docs[name]))
        for name, default in find_defaults(config).items()
    ]
    yield from make_table(("field", "type", "default", ""), rows) if rows else ()


def find_defaults(config: type[BaseConfig]) -> dict[str, str]:
    """Field -> its default as code, or that it must be given; without the fields that are sections of their own."""
    found = {}
    for field in dataclasses.fields(config):
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        is_required_section = value is dataclasses.MISSING and _may_hold_config(config, field.name)
        if not is_required_section and not isinstance(value, BaseConfig):
            found[field.name] = "required" if value is dataclasses.MISSING else make_code(format_value(value))
    return found


def _may_hold_config(config: type[BaseConfig], name: str) -> bool:
    members = find_members(find_annotations(config)[name])
    return any(isinstance(each, type) and issubclass(each, BaseConfig) for each in members)
