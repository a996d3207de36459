"""JSON that every parser reads: NaN and infinities, which JSON does not have, become null and are named beside it.

{"loss": NaN} is written as {"loss": null, "non_finite": {"loss": "nan"}}; nested values are named by their path, such
as `expert_load/entropy/0`. `restore` puts the floats back.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from monograph.system.foreign_json import UnusableFile, parse_json

NON_FINITE = "non_finite"
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def dump(value: Mapping[str, Any], *, indent: int | None = None, is_compact: bool = False) -> str:
    """An object as JSON text without NaN and infinities."""
    found: dict[str, str] = {}
    plain = _replace(value, "", found)
    if found:
        plain[NON_FINITE] = found
    separators = (",", ":") if is_compact else None
    return json.dumps(plain, indent=indent, separators=separators, allow_nan=False)


def parse(text: str | bytes) -> Any:
    """What JSON text says; ValueError for a bare NaN or Infinity, as for anything else that is not JSON."""
    try:
        return parse_json(text, "the text")
    except UnusableFile as error:
        raise ValueError(error.why) from None


def restore(record: dict[str, Any]) -> dict[str, Any]:
    """An object that `dump` wrote, with its NaN and infinities as floats again."""
    names = record.get(NON_FINITE)
    if not isinstance(names, dict):
        return record
    restored = json.loads(json.dumps({name: value for name, value in record.items() if name != NON_FINITE}))
    for path, word in names.items():
        *parents, last = path.split("/")
        holder = restored
        for name in parents:
            holder = holder[int(name) if isinstance(holder, list) else name]
        holder[int(last) if isinstance(holder, list) else last] = _WORDS[word]
    return restored


def _replace(value: Any, path: str, found: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        found[path] = str(value)
        return None
    prefix = f"{path}/" if path else ""
    if isinstance(value, Mapping):
        return {str(name): _replace(item, f"{prefix}{name}", found) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace(item, f"{prefix}{index}", found) for index, item in enumerate(value)]
    return value
