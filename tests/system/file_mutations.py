"""What may have happened to a file or a folder: damage, other content under right hashes, other kinds of files."""

import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from monograph.manifest.sealed import seal
from monograph.train.data.shard_index import CHECKSUM, find_checksum

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, -(2**63), 10**30, 0.5, -0.0, 1e308, 1e-320),
    *(
        "",
        "x",
        "../../../../etc/passwd",
        "/etc/passwd",
        "\x1b[2J\x1b]0;title\x07",
        "a\n12:00:00 I all is well",
        "\u202e",
    ),
    *("nan", "\ud800", "x" * 100_000, [], {}, [[]], [None] * 1000, {"": {}}, {"$class": "os:system"}),
    *({"$class": "monograph.nowhere:Nothing"}, {"$function": "posix:abort"}),
)
OTHER_USER = 54321


class Impossible(Exception):
    """The mutation does not fit this file."""


def cut(data: bytes, draw: random.Random) -> bytes:
    """A file that was not written to its end."""
    return data[: draw.randrange(len(data) + 1)]


def flip(data: bytes, draw: random.Random) -> bytes:
    """A few bits that are not those that were written."""
    if not data:
        raise Impossible
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 3, 64))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def insert(data: bytes, draw: random.Random) -> bytes:
    """Bytes that do not belong there."""
    place = draw.randrange(len(data) + 1)
    more = draw.choice((draw.randbytes(draw.randrange(1, 200)), b"\0" * 4096, b"\n", b"[" * 10_000, b'{"a":' * 5_000))
    return data[:place] + more + data[place:]


def leave_out(data: bytes, draw: random.Random) -> bytes:
    """A piece is missing."""
    first, last = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    return data[:first] + data[last:]


def replace_all(data: bytes, draw: random.Random) -> bytes:
    """Another file altogether; none is so long that a text of it is honest work for seconds."""
    return draw.choice(
        (b"", b"\0", b"\n\n\n", b"null", b"[]", b"{}", b'"text"', b"\xff\xfe{}", draw.randbytes(1000), b"[" * 10_000)
    )


def change_json(data: bytes, draw: random.Random) -> bytes:
    """JSON of the same shape with another value, key or depth somewhere."""
    try:
        value = json.loads(data)
    except ValueError:
        raise Impossible from None
    return json.dumps(change_value(value, draw), indent=draw.choice((None, 1))).encode("utf-8", "surrogatepass")


def change_lines(data: bytes, draw: random.Random) -> bytes:
    """A file of JSON lines, one of which is changed."""
    lines = data.splitlines()
    if not lines:
        raise Impossible
    place = draw.randrange(len(lines))
    lines[place] = change_json(lines[place], draw).replace(b"\n", b" ")
    return b"\n".join(lines) + b"\n"


def change_value(value: Any, draw: random.Random) -> Any:
    """A JSON value with one place changed."""
    holders = [found for found in _find_holders(value) if len(found)]
    if not holders:
        return draw.choice(ODD_VALUES)
    holder = draw.choice(holders)
    key = draw.choice(list(holder)) if isinstance(holder, dict) else draw.randrange(len(holder))
    kind = draw.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[str(draw.choice(ODD_VALUES))[:1000]] = holder.pop(key)
    elif kind == 2:
        nested: Any = draw.choice(ODD_VALUES)
        for _ in range(draw.choice((1, 50, 150, 900))):
            nested = [nested] if draw.random() < 0.5 else {"a": nested}
        holder[key] = nested
    elif kind == 3 and isinstance(holder[key], int | float):
        holder[key] = draw.choice((-holder[key], holder[key] + 1, holder[key] * 10**9, float("nan"), float("-inf")))
    elif kind == 4 and isinstance(holder[key], str):
        holder[key] = holder[key][: len(holder[key]) // 2] + str(draw.choice(ODD_VALUES))[:1000]
    else:
        holder[key] = draw.choice(ODD_VALUES)
    return value


def _find_holders(value: Any) -> list[Any]:
    found, waiting = [], [value]
    while waiting:
        this = waiting.pop()
        if isinstance(this, dict | list):
            found.append(this)
            waiting += this.values() if isinstance(this, dict) else this
    return found


def change_sealed(data: bytes, draw: random.Random) -> bytes:
    """A manifest that somebody changed and gave the right hash."""
    first, _, rest = data.partition(b"\n")
    if not first.startswith(b'{"sha256"'):
        raise Impossible
    content = change_value(json.loads(b"{" + rest), draw)
    text = json.dumps(content).encode("utf-8", "surrogatepass")
    return seal(text.removeprefix(b"{"))


def change_index(data: bytes, draw: random.Random) -> bytes:
    """An index of token shards that somebody changed and gave the right checksum."""
    try:
        content = json.loads(data)
    except ValueError:
        raise Impossible from None
    if not isinstance(content, dict) or CHECKSUM not in content:
        raise Impossible
    content = change_value(content, draw)
    if isinstance(content, dict):
        content.pop(CHECKSUM, None)
        content[CHECKSUM] = find_checksum(content)
    return json.dumps(content).encode("utf-8", "surrogatepass")


def change_header(data: bytes, draw: random.Random) -> bytes:
    """A safetensors file whose header says something else."""
    if len(data) < 8 or not 0 < (size := int.from_bytes(data[:8], "little")) < len(data):
        raise Impossible
    try:
        header = json.loads(data[8 : 8 + size])
    except ValueError:
        raise Impossible from None
    text = json.dumps(change_value(header, draw)).encode("utf-8", "surrogatepass")
    wrong = draw.choice((len(text), len(text), len(text), len(text) - 1, 2**40, 2**63))
    return struct.pack("<Q", wrong) + text + data[8 + size :]


CONTENTS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": cut,
    "bits": flip,
    "inserted": insert,
    "left out": leave_out,
    "other file": replace_all,
    "json": change_json,
    "lines": change_lines,
    "resealed": change_sealed,
    "index": change_index,
    "header": change_header,
}


def missing(path: Path, home: Path, draw: random.Random) -> None:
    """Nothing is there."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def link(path: Path, home: Path, draw: random.Random) -> None:
    """A link in its place: to something of the user's, to nothing, to itself, or to a device."""
    target = draw.choice((home / "precious.txt", home / "precious", home / "nothing", path, "/dev/zero", "/dev/null"))
    missing(path, home, draw)
    path.symlink_to(target)


def moved_behind_link(path: Path, home: Path, draw: random.Random) -> None:
    """The thing itself, on another disk, with a link in its place."""
    elsewhere = home / "disk" / path.name
    elsewhere.parent.mkdir(exist_ok=True)
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def fifo(path: Path, home: Path, draw: random.Random) -> None:
    """A pipe that nobody writes to."""
    missing(path, home, draw)
    os.mkfifo(path)


def other_kind(path: Path, home: Path, draw: random.Random) -> None:
    """A folder in the place of a file, or the other way round."""
    was_folder = path.is_dir()
    missing(path, home, draw)
    path.write_text("x") if was_folder else path.mkdir()


def huge(path: Path, home: Path, draw: random.Random) -> None:
    """A file with a hole of 100 GB at its end."""
    if path.is_dir():
        raise Impossible
    os.truncate(path, 100 << 30)


def unreadable(path: Path, home: Path, draw: random.Random) -> None:
    """Nobody may look."""
    path.chmod(0)


def of_another_user(path: Path, home: Path, draw: random.Random) -> None:
    """Another user's, who lets all read it."""
    if os.geteuid() != 0:
        raise Impossible
    os.chown(path, OTHER_USER, OTHER_USER)


def open_to_all(path: Path, home: Path, draw: random.Random) -> None:
    """Everybody may write there."""
    path.chmod(0o777 if path.is_dir() else 0o666)


def with_strangers(path: Path, home: Path, draw: random.Random) -> None:
    """Files that do not belong there, some with odd names."""
    folder = path if path.is_dir() else path.parent
    names = (
        "a\nb",
        "\x1b[2J",
        "step-00000009",
        ".tmp-x",
        ".old-y",
        "tokens-9.bin",
        ".lock",
        "x" * 200,
        "config.json.1",
    )
    name = draw.choice(names)
    if (folder / name).exists():
        raise Impossible
    draw.choice((lambda at: at.mkdir(), lambda at: at.write_text("x"), lambda at: at.symlink_to(home / "precious")))(
        folder / name
    )


BEHIND_A_LINK = "behind a link"
SHAPES: dict[str, Callable[[Path, Path, random.Random], None]] = {
    "missing": missing,
    "link": link,
    BEHIND_A_LINK: moved_behind_link,
    "pipe": fifo,
    "other kind": other_kind,
    "huge": huge,
    "unreadable": unreadable,
    "other owner": of_another_user,
    "open to all": open_to_all,
    "strangers": with_strangers,
}


def digest(path: Path) -> str:
    """What is at a path, without following links."""
    if path.is_symlink():
        return f"link {os.readlink(path)}"
    if not path.is_file():
        return "other"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.stat().st_size < 1 << 30 else "huge"
