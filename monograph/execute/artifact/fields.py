"""What every field of a manifest must be: whatever else it is, it is refused by name. Loads without torch.

A manifest whose hash is right may still be forged, so nothing of it is used before it was checked
here.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], None]
"""Checks a value; the second argument is its path, for the error."""

MAX_COUNT = 1 << 31
"""Of ranks, nodes and sizes."""
MAX_FILE_BYTES = 1 << 42
MAX_TEXT = 100_000
MAX_DEPTH = 24
GRAPHS = STEP, EVALUATION = "step", "evaluation"
"""The graphs of an artifact."""
REGIONS, KERNELS, OWN_KERNELS = "regions/", "kernels/", "own/kernels/"
"""Where an artifact has code: compiled parts, the C++ kernels they call, and the kernels of custom ops."""


class BadField(ValueError):
    """A field of a manifest is not what it must be; the text names it."""


def bad(value: Any, path: str, wanted: str) -> BadField:
    """The error about one field."""
    return BadField(f"{path} is {value!r:.60}, and must be {wanted}")


def integer(low: int, high: int = MAX_COUNT) -> Check:
    """A whole number in a range."""

    def check(value: Any, path: str) -> None:
        if type(value) is not int or not low <= value <= high:
            raise bad(value, path, f"a whole number from {low} to {high}")

    return check


def text(pattern: str = "", wanted: str = "a text") -> Check:
    """A printable text, as a whole of the given pattern."""
    expression = re.compile(pattern) if pattern else None

    def check(value: Any, path: str) -> None:
        is_text = isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()
        if not is_text or (expression is not None and not expression.fullmatch(value)):
            raise bad(value, path, wanted)

    return check


def listing(each: Check) -> Check:
    """A list."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, list):
            raise bad(value, path, "a list")
        for index, item in enumerate(value):
            each(item, f"{path}.{index}")

    return check


def mapping(each: Check, *, needs: tuple[str, ...] = (), only: tuple[str, ...] = ()) -> Check:
    """An object whose values are all of one kind."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise bad(value, path, "an object")
        _check_names(value, path, needs, only)
        for name, item in value.items():
            each(item, f"{path}.{name}")

    return check


def record(fields: Mapping[str, Check]) -> Check:
    """An object with exactly these fields."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise bad(value, path, "an object")
        _check_names(value, path, tuple(fields), tuple(fields))
        for name, each in fields.items():
            each(value[name], f"{path}.{name}")

    return check


def _check_names(value: dict[str, Any], path: str, needs: tuple[str, ...], only: tuple[str, ...]) -> None:
    for name in needs:
        if name not in value:
            raise BadField(f"{path}.{name} is missing")
    for name in value:
        text()(name, f"the name of a field in {path}")
        if only and name not in only:
            raise BadField(f"{path} has the field {name!r:.60}, and may have {', '.join(only)}")


def json_value(value: Any, path: str, depth: int = 0) -> None:
    """Anything that JSON can say, with printable texts and not nested without end."""
    if depth > MAX_DEPTH:
        raise BadField(f"{path:.200} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        text()(value.replace("\n", "").replace("\t", ""), path)
    elif isinstance(value, dict):
        _check_names(value, path, (), ())
        for name, item in value.items():
            json_value(item, f"{path}.{name}", depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            json_value(item, f"{path}.{index}", depth + 1)


def json_object(value: Any, path: str) -> None:
    """An object that JSON can say."""
    if not isinstance(value, dict):
        raise bad(value, path, "an object")
    json_value(value, path)


def scalar(value: Any, path: str) -> None:
    """A number, a text, nothing, or a list of texts."""
    if isinstance(value, list):
        listing(text())(value, path)
    elif isinstance(value, dict):
        raise bad(value, path, "a number or a text")
    else:
        json_value(value, path)


def of_graphs(each: Check) -> Check:
    """An entry for every graph; a step is always there."""
    return mapping(each, needs=(STEP,), only=GRAPHS)


_sizes = listing(integer(0))
_texts = listing(text())
_slot = record(
    {"names": _texts, "shape": _sizes, "local_shape": _sizes, "cuts": _texts, "unit": text(), "order": integer(0)}
)
_pass = record(
    {
        **dict.fromkeys(("name", "status", "note"), text()),
        "options": json_object,
        **dict.fromkeys(("added", "removed", "moved"), integer(0)),
    }
)
SECTIONS: Mapping[str, Check] = {
    "config": json_object,
    "mesh": mapping(integer(1), needs=("world",)),
    "groups": mapping(integer(1)),
    "table": mapping(_slot),
    "inputs": of_graphs(mapping(text())),
    "passes": of_graphs(listing(_pass)),
    "digests": of_graphs(text(r"[0-9a-f]{32}", "32 hexadecimal digits")),
    "parts": of_graphs(listing(text(r"compiled(_[0-9]{1,9})?", "compiled or compiled_NUMBER"))),
    "versions": mapping(text()),
    "environment": mapping(text()),
    "machine": mapping(scalar, needs=("device",)),
}
"""What a manifest says besides its files, in this order."""

_PIECE = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"{_PIECE}(/{_PIECE}){{0,3}}")
_file = record(
    {"size": integer(0, MAX_FILE_BYTES), "sha256": text(r"[0-9a-f]{64}", "64 hexadecimal digits")},
)


def check_files_field(value: Any, path: str) -> None:
    """Names that stay inside of the folder, each with a size and a hash."""
    if not isinstance(value, dict):
        raise bad(value, path, "an object")
    for name, entry in value.items():
        if not _NAME.fullmatch(name):
            raise BadField(f"{path} lists a file as {name!r:.80}")
        _file(entry, f"{path}.{name}")


def check_content(content: Mapping[str, Any]) -> None:
    """Every field of a manifest behind its schema."""
    known = {"sha256", "hmac", "schema", *SECTIONS, "files"}
    odd = [name for name in content if name not in known]
    if odd:
        raise BadField(f"it has the field {odd[0]!r:.60}")
    for name, check in {**SECTIONS, "files": check_files_field}.items():
        if name not in content:
            raise BadField(f"{name} is missing")
        check(content[name], name)
    check_parts(content)


def check_parts(content: Mapping[str, Any]) -> None:
    """Graphs and compiled parts have their files, and there is no compiled part that no graph has."""
    listed = {name_part(graph, part) for graph, parts in content["parts"].items() for part in parts}
    found = {name for name in content["files"] if name.startswith(REGIONS)}
    if listed != found:
        raise BadField(f"parts and files disagree about {', '.join(sorted(listed ^ found))[:200]}")
    if not listed and any(name.startswith(KERNELS) for name in content["files"]):
        raise BadField(f"files has {KERNELS}, and parts has no compiled part that could use them")
    for graph in content["parts"]:
        if f"{graph}.json" not in content["files"]:
            raise BadField(f"files.{graph}.json is missing")
    for section in ("inputs", "passes", "digests"):
        if content[section].keys() != content["parts"].keys():
            raise BadField(f"{section} and parts name different graphs")


def name_part(graph: str, part: str) -> str:
    """The file of one part's compiled code."""
    return f"{REGIONS}{graph}-{part}.bin"
