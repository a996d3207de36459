"""Read JSON and other small files that come from outside: regular files, of bounded size and depth.

Everything that was downloaded, shared or edited is read through here: a config.json that is a FIFO, a link to /dev/zero
or 10,000 brackets deep is refused in words that name it, before it can hang the program or fill its memory.
"""

import json
import math
import os
import re
import stat
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from monograph.errors import EXIT_WRONG_INPUT, MonographError
from monograph.system.foreign_text import show

MAX_BYTES = 64 << 20
MAX_DEPTH = 100
"""Levels of brackets; far above any file of ours, far below Python's limit."""
_PIECE_BYTES = 1 << 20
_STRING = re.compile(rb'"[^"]*"')
_ALL_BUT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))
_TOO_DEEP = re.compile(rb"[\[{]{%d}" % (MAX_DEPTH + 1))


class UnusableFile(MonographError, ValueError):
    """A file from outside that cannot be used as it is."""

    exit_code = EXIT_WRONG_INPUT


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading (links to one are followed); UnusableFile for FIFOs and devices."""
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(21, "it is a folder", str(path))
        if not stat.S_ISREG(status.st_mode):
            raise UnusableFile(f"cannot read {show(path)}", why="it is not a regular file")
        return open(file, "rb")
    except BaseException:
        os.close(file)
        raise


def read_file(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Content of a regular file (links to one are followed); OSError as for any file, UnusableFile for the rest."""
    with open_regular(path) as opened:
        is_too_large = os.fstat(opened.fileno()).st_size > max_bytes  # known before memory is filled with it
        content = b"" if is_too_large else _read_up_to(opened, max_bytes + 1)
    if is_too_large or len(content) > max_bytes:
        limit = f"{max_bytes >> 20} MiB" if max_bytes >= 1 << 20 else f"{max_bytes} bytes"
        raise UnusableFile(f"cannot read {show(path)}", why=f"it is larger than {limit}, which no such file needs")
    return content


def _read_up_to(file: BinaryIO, size: int) -> bytes:
    """At most `size` bytes, in pieces: a limit of many GiB takes no memory for a small file."""
    pieces = []
    while size > 0 and (piece := file.read(min(size, _PIECE_BYTES))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def read_text(path: Path, *, max_bytes: int = MAX_BYTES) -> str:
    """Text of a UTF-8 file, under the same limits."""
    try:
        return read_file(path, max_bytes=max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnusableFile(f"cannot read {show(path)}", why=f"byte {error.start} is not UTF-8 text") from None


def read_json(
    path: Path, *, kind: type | tuple[type, ...] = dict, max_bytes: int = MAX_BYTES, allow_nan: bool = False
) -> Any:
    """Content of a JSON file whose outermost value is of `kind`."""
    return parse_json(read_file(path, max_bytes=max_bytes), show(path), kind=kind, allow_nan=allow_nan)


def parse_json(
    data: bytes | str, where: str, *, kind: type | tuple[type, ...] = object, allow_nan: bool = False
) -> Any:
    """Value of JSON text; UnusableFile says `where`. Keys that come twice, NaN and deep nesting are errors."""
    try:
        check_depth(data)
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        value = (_WITH_NAN if allow_nan else _STRICT).decode(text)
    except UnicodeDecodeError as error:
        raise UnusableFile(f"cannot read {where}", why=f"byte {error.start} is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:
        raise UnusableFile(f"cannot read {where}", why=f"it is not JSON: {show(error)}") from None
    if not isinstance(value, kind):
        raise UnusableFile(f"cannot read {where}", why=f"it holds {_name(value)}, not {_name_kind(kind)}")
    return value


def check_depth(data: bytes | str) -> None:
    """Raise ValueError for JSON text that nests deeper than MAX_DEPTH; brackets in strings do not count."""
    encoded = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if encoded.count(b"[") + encoded.count(b"{") <= MAX_DEPTH:
        return
    without_escapes = encoded.replace(b"\\\\", b"").replace(b'\\"', b"")
    # adjacent quotes are an empty string, or two strings that become one
    brackets = _STRING.sub(b"", without_escapes.translate(None, _ALL_BUT_BRACKETS).replace(b'""', b""))
    for _ in range(MAX_DEPTH):
        if _TOO_DEEP.search(brackets):
            break
        shorter = brackets.replace(b"[]", b"").replace(b"{}", b"")  # peels the innermost level
        if not shorter or len(shorter) == len(brackets):
            return  # what is left never closes, which the parser says
        brackets = shorter
    raise ValueError(f"it nests more than {MAX_DEPTH} levels")


def _read_object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has the key {next(name for name in names if names.count(name) > 1)!r} twice")
    return values


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def _read_float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is larger than any number of this program")
    return value


_STRICT = json.JSONDecoder(object_pairs_hook=_read_object, parse_constant=_refuse, parse_float=_read_float)
_WITH_NAN = json.JSONDecoder(object_pairs_hook=_read_object)
"""Made once: for the short lines of metrics.jsonl, making one takes as long as using it."""


def _name(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _name_kind(kind: type | tuple[type, ...]) -> str:
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return " or ".join(_name(each()) for each in kinds)
