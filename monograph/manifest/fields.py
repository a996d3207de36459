"""What a field of a manifest must be: whatever else it is, it is refused by name.

A manifest whose hash is right may still be forged, so nothing of it is used before it was checked here.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

Check = Callable[[Any, str], None]
"""Checks a value; the second argument is its path, for the error."""

MAX_COUNT = 1 << 31
"""Of ranks, nodes and sizes."""
MAX_BYTES = 1 << 62
MAX_TEXT = 100_000
MAX_DEPTH = 24


@dataclass(frozen=True)
class FileRecord:
    """What a file must be, to the byte."""

    size: int
    sha256: str

    def to_data(self) -> dict[str, Any]:
        """As a manifest has it."""
        return {"size": self.size, "sha256": self.sha256}


class ManifestError(ValueError):
    """A manifest cannot be believed: the text says why, and names the field."""


def bad(value: Any, path: str, wanted: str) -> ManifestError:
    """The error about one field."""
    return ManifestError(f"{path} is {value!r:.60}, and must be {wanted}")


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
        check_names(value, path, needs, only)
        for name, item in value.items():
            each(item, f"{path}.{name}")

    return check


def record(fields: Mapping[str, Check]) -> Check:
    """An object with exactly these fields."""

    def check(value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise bad(value, path, "an object")
        check_names(value, path, tuple(fields), tuple(fields))
        for name, each in fields.items():
            each(value[name], f"{path}.{name}")

    return check


def check_names(value: dict[str, Any], path: str, needs: tuple[str, ...], only: tuple[str, ...]) -> None:
    """An object has the names it needs, and no others than it may have."""
    for name in needs:
        if name not in value:
            raise ManifestError(f"{path}.{name} is missing")
    for name in value:
        text()(name, f"the name of a field in {path}")
        if only and name not in only:
            raise ManifestError(f"{path} has the field {name!r:.60}, and may have {', '.join(only)}")


def json_value(value: Any, path: str, depth: int = 0) -> None:
    """Anything that JSON can say, with printable texts and not nested without end."""
    if depth > MAX_DEPTH:
        raise ManifestError(f"{path:.200} is nested more than {MAX_DEPTH} deep")
    if isinstance(value, str):
        text()(value.replace("\n", "").replace("\t", ""), path)
    elif isinstance(value, dict):
        check_names(value, path, (), ())
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


def dictionary(value: Any, path: str) -> None:
    """Any object."""
    if not isinstance(value, dict):
        raise bad(value, path, "an object")


def string(value: Any, path: str) -> None:
    """Any text."""
    if type(value) is not str:
        raise bad(value, path, "a text")


def one_of(choices: Collection[str]) -> Check:
    """One of a few texts."""

    def check(value: Any, path: str) -> None:
        if type(value) is not str or value not in choices:
            raise bad(value, path, f"one of {', '.join(sorted(choices))}")

    return check


_file = record({"size": integer(0, MAX_BYTES), "sha256": text(r"[0-9a-f]{64}", "64 hexadecimal digits")})


def read_files(value: Any, path: str, name: re.Pattern[str]) -> dict[str, FileRecord]:
    """Names of a pattern that stay inside of the folder, each with a size and a hash."""
    if not isinstance(value, dict):
        raise bad(value, path, "an object")
    for each, entry in value.items():
        if not name.fullmatch(each):
            raise ManifestError(f"{path} lists a file as {each!r:.80}")
        _file(entry, f"{path}.{each}")
    return {each: FileRecord(entry["size"], entry["sha256"]) for each, entry in value.items()}
