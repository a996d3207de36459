"""Small files that are there whole or not at all: written under another name, then renamed.

Files that a program names itself (in its run folder) replace whatever has their name: a link there is replaced, and its
target stays as it is. A file that a user names is refused when the name is a link: to follow it would overwrite a file
that the command line does not name, and to replace it would leave the target old.
"""

import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path

from monograph.errors import ConfigError, MonographError
from monograph.system.foreign_text import show
from monograph.system.own_file import create_own

_STREAMS = ("/dev/stdout", "/dev/stderr", "/dev/null")
_DO = "choose another name"
_DO_FOLDER = "choose another folder"


def write_whole(path: Path, content: str | bytes, *, mode: int = 0o666) -> None:
    """Write a file, replacing one that is there; readers see the old content or the new one. An OSError names it.

    `mode` is that of the new file, less the umask.
    """
    data = content.encode() if isinstance(content, str) else content
    prepared = path.with_name(f".{path.name[:60]}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(create_own(prepared, mode), "wb") as file:
            file.write(data)
        os.replace(prepared, path)
    except BaseException as error:
        with suppress(OSError):  # the folder is none, or has gone
            prepared.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            error.filename, error.filename2 = str(path), None
        raise


def check_output_folder(flag: str, name: str) -> None:
    """Refuse a folder that is something else or that the system does not make; nothing is left behind."""
    for part in (Path(name), *Path(name).parents):
        if part.is_symlink() and not part.exists():
            why = f"{show(part)} is a link to {show(os.readlink(part))}, which is not there"
            raise ConfigError(
                f"{flag} {show(name)}", why=why, do="make that folder, mount its disk, or remove the link"
            )
    path = Path(os.path.realpath(name))
    parts = [*reversed(path.parents), path]
    existing = [part for part in parts if part.exists()][-1]
    if not existing.is_dir():
        raise ConfigError(f"{flag} {show(name)}", why=f"{show(existing)} is not a folder", do=_DO_FOLDER)
    if existing == path:
        return
    missing = parts[parts.index(existing) + 1]
    try:
        missing.mkdir()
        missing.rmdir()
    except FileExistsError:  # another process is making it
        return
    except OSError as error:
        reason = f"no folder can be made in {show(existing)}: {error.strerror}"
        raise ConfigError(f"{flag} {show(name)}", why=reason, do=_DO_FOLDER) from None


def check_output(flag: str, name: str, *, makes_folder: bool = False) -> None:
    """Refuse a file that cannot be written or is not to be replaced, before the work for it begins."""
    path = Path(name)
    if is_stream(path):
        return
    if reason := _find_obstacle(path):
        raise ConfigError(f"{flag} {name}", why=reason, do=_DO)
    if not makes_folder and not path.parent.is_dir():
        raise ConfigError(f"{flag} {name}", why=f"there is no folder {path.parent}", do="make it first")


def write_output(path: Path, content: str | bytes) -> None:
    """Write a file that a user named; a MonographError says why it cannot be."""
    if is_stream(path):
        sys.stdout.flush()
        with path.open("ab") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
        return
    if reason := _find_obstacle(path):
        raise MonographError(f"{show(path)} cannot be written", why=reason, do=_DO)
    try:
        write_whole(path, content)
    except OSError as error:
        raise MonographError(
            f"{show(path)} cannot be written", why=error.strerror or str(error), do=f"make room, or {_DO}"
        ) from None


def is_stream(path: Path) -> bool:
    """Whether this is an open stream of the process or /dev/null, which are written to and never replaced."""
    return str(path) in _STREAMS or str(path.parent) in ("/dev/fd", "/proc/self/fd")


def _find_obstacle(path: Path) -> str:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return ""
    except OSError as error:
        return error.strerror or str(error)
    if stat.S_ISLNK(mode):
        return f"it is a link to {show(os.readlink(path))}; links are neither followed nor replaced"
    if stat.S_ISDIR(mode):
        return "it is a folder"
    return "" if stat.S_ISREG(mode) else "it is not a regular file"
