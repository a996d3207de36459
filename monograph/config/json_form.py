"""Configurations to JSON and back without loss.

Plain values are plain JSON. What JSON cannot say is an object with one `$` key: {"$class": "module:Name", ...} for a
Config, {"$function": "module:name"}, {"$float": "inf"}, {"$tuple": [...]} where the annotation does not already ask for
a tuple. Reading runs no code that is not already loaded or our own, and every value is compared with its annotation.
"""

import dataclasses
import enum
import json
import math
from pathlib import Path, PurePath
from typing import Any

from monograph.config.annotations import (
    describe,
    find_annotations,
    find_container,
    find_element,
    find_excess,
    find_members,
    is_callable_type,
    is_valid,
)
from monograph.config.configurable import BaseConfig
from monograph.config.references import find_loaded, name_of
from monograph.errors import ConfigError, did_you_mean
from monograph.renamed import find_replacement
from monograph.system import foreign_json
from monograph.system.foreign_json import UnusableFile

_CONTAINERS: dict[str, type] = {"$list": list, "$tuple": tuple, "$set": set, "$frozenset": frozenset}


def to_json(config: BaseConfig) -> dict[str, Any]:
    """The whole configuration as objects that JSON can write."""
    encoded: dict[str, Any] = _encode(config, type(config))
    return encoded


def from_json(data: Any) -> Any:
    """The configuration that `to_json` described; ConfigError for anything else."""
    if not (isinstance(data, dict) and "$class" in data):
        raise ConfigError("this is not a monograph configuration", why='it does not begin with a "$class"')
    try:
        return _decode_config(data, "")
    except (
        TypeError,
        RecursionError,
    ) as error:  # a list inside a set, an endless nesting: only a damaged file has them
        raise ConfigError("this configuration cannot be read", why=str(error)) from None


def dump_json(config: BaseConfig) -> str:
    """The whole configuration as JSON text."""
    return json.dumps(to_json(config), indent=2, allow_nan=False)


def parse_json(text: str) -> Any:
    """The configuration that `dump_json` wrote; ConfigError for anything else."""
    try:
        data = foreign_json.parse_json(text, "the configuration")
    except UnusableFile as error:
        raise ConfigError("this is not a configuration file", why=error.why) from None
    return from_json(data)


def is_same(left: Any, right: Any) -> bool:
    """Whether two values are written the same way: 1 and 1.0 differ, nan equals nan."""
    return json.dumps(_encode(left, Any), sort_keys=True) == json.dumps(_encode(right, Any), sort_keys=True)


def _encode(value: Any, annotation: Any) -> Any:
    if isinstance(value, BaseConfig):
        annotations = find_annotations(type(value))
        fields = {name: _encode(getattr(value, name), annotations[name]) for name in annotations}
        return {"$class": name_of(type(value)), **fields}
    if isinstance(value, enum.Enum):
        return {"$enum": name_of(type(value)), "name": value.name}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, PurePath):
        return {"$path": str(value)}
    if isinstance(value, (list, tuple, set, frozenset)):
        return _encode_sequence(value, annotation)
    if isinstance(value, dict):
        return _encode_dict(value, annotation)
    if callable(value):
        return {"$function": name_of(value)}
    raise ConfigError(
        f"a configuration cannot hold {value!r}",
        why=f"a {type(value).__name__} cannot be written to a file and read back",
        do="use numbers, texts, lists, tuples, dicts, functions or nested Configs",
    )


def _encode_sequence(value: Any, annotation: Any) -> Any:
    declared = _find_declared(annotation)
    entries = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
    items = [_encode(item, find_element(declared, index)) for index, item in enumerate(entries)]
    if type(value) is (find_container(declared) or list):
        return items
    tag = next((tag for tag, container in _CONTAINERS.items() if container is type(value)), None)
    if tag is None:
        raise ConfigError(f"a configuration cannot hold a {type(value).__name__}", do="use a list or a tuple")
    return {tag: items}


def _encode_dict(value: dict[Any, Any], annotation: Any) -> Any:
    element = find_element(_find_declared(annotation), 0)
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _encode(item, element) for key, item in value.items()}
    return {"$dict": [[_encode(key, Any), _encode(item, element)] for key, item in value.items()]}


def _find_declared(annotation: Any) -> Any:
    """The container a plain JSON list or object stands for in a field of this annotation; Any when it is not clear."""
    found = [member for member in find_members(annotation) if find_container(member)]
    return found[0] if len(found) == 1 else Any


def _decode(data: Any, annotation: Any, path: str) -> Any:
    declared = _find_declared(annotation)
    if isinstance(data, list):
        container = find_container(declared)
        kind = container if container in _CONTAINERS.values() else list
        return kind(_decode(item, find_element(declared, index), path) for index, item in enumerate(data))
    if not isinstance(data, dict):
        return data
    tag = next((key for key in data if key.startswith("$")), None)
    if tag is None:
        return {key: _decode(item, find_element(declared, 0), path) for key, item in data.items()}
    return _decode_tagged(tag, data, annotation, path)


def _decode_tagged(tag: str, data: dict[str, Any], annotation: Any, path: str) -> Any:
    declared, content = _find_declared(annotation), data[tag]
    if tag == "$class":
        return _decode_config(data, path)
    if tag in _CONTAINERS and isinstance(content, list):
        items = (_decode(item, find_element(declared, index), path) for index, item in enumerate(content))
        return _CONTAINERS[tag](items)
    if (
        tag == "$dict"
        and isinstance(content, list)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in content)
    ):
        element = find_element(declared, 0)
        return {_decode(key, Any, path): _decode(item, element, path) for key, item in content}
    if tag == "$float" and content in ("inf", "-inf", "nan"):
        return float(content)
    if tag == "$path" and isinstance(content, str):
        return Path(content)
    if tag == "$function" and any(is_callable_type(member) for member in find_members(annotation)):
        return find_loaded(str(content))
    if tag == "$enum":
        kind = find_loaded(str(content))
        if isinstance(kind, type) and issubclass(kind, enum.Enum) and data.get("name") in kind.__members__:
            return kind[data["name"]]
    raise ConfigError(f"{path or 'the file'}: {json.dumps(data)[:200]} cannot be read", why=f"{tag} is not valid here")


def _decode_config(data: dict[str, Any], path: str) -> BaseConfig:
    kind = find_loaded(str(data["$class"]))
    if not (isinstance(kind, type) and issubclass(kind, BaseConfig)):
        raise ConfigError(
            f"{path or 'the file'}: {data['$class']} is not a Config class", why="only Configs may be built"
        )
    annotations = find_annotations(kind)
    values = {}
    for name, item in data.items():
        if name == "$class":
            continue
        where = f"{path}.{name}" if path else name
        if name not in annotations:
            do = find_replacement(where) or did_you_mean(name, annotations)
            raise ConfigError(
                f"there is no field {where}", why="it was written by another version, or misspelled", do=do
            )
        values[name] = _decode(item, annotations[name], where)
        if not is_valid(values[name], annotations[name]):
            excess = find_excess(values[name])
            raise ConfigError(
                f"{where} is {json.dumps(item)[:200]}",
                why=f"expected {describe(annotations[name])}" + (f": {excess}" if excess else ""),
            )
    required = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    for name in required:
        if name not in values:
            raise ConfigError(
                f"{path + '.' if path else ''}{name} is missing", why=f"{kind.__name__} has no default for it"
            )
    return kind(**values)
