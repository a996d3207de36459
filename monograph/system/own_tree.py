"""Delete or replace a folder: only one that was read as ours, and only the files that it lists.

`rmtree` on a name is right until the name is a link, or until the folder holds something that nobody expected. Here a
folder is opened without following links, its contents are compared with a list, and what is not on the list stays.
"""

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Collection
from pathlib import Path

from monograph.errors import ConfigError, MonographError


def is_plain_folder(path: Path) -> bool:
    """Whether the name itself is a folder, rather than a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def remove_made(path: Path) -> None:
    """Delete a temporary folder that this process has made; a link in its place is left alone. Raises nothing."""
    if is_plain_folder(path):
        shutil.rmtree(path, ignore_errors=True)


def find_foreign(folder: Path, listed: Collection[str]) -> list[str]:
    """Names below a folder that are not listed, links and special files included; folders of listed files are.

    Raises OSError for folders that cannot be read: nobody knows what they hold.
    """
    parents = {parent.as_posix() for name in listed for parent in Path(name).parents}
    foreign = []
    for path, folders, files in os.walk(folder, followlinks=False, onerror=_raise):
        inside = Path(path).relative_to(folder)
        for name in files:
            relative = (inside / name).as_posix()
            if relative not in listed or not stat.S_ISREG((Path(path) / name).lstat().st_mode):
                foreign.append(relative)
        for name in [*folders]:
            relative = (inside / name).as_posix()
            if relative not in parents or (Path(path) / name).is_symlink():
                foreign.append(f"{relative}/")
                folders.remove(name)
    return sorted(foreign)


def _raise(error: OSError) -> None:
    raise error


def _find_locked(folder: Path) -> str:
    """A folder from which this process can delete nothing, or an empty string."""
    folders = (path for path, *_ in os.walk(folder, followlinks=False))
    return next((path for path in folders if not os.access(path, os.W_OK | os.X_OK, effective_ids=True)), "")


def check_replaceable(target: Path, what: str, read_listed: Callable[[Path], Collection[str]]) -> None:
    """Raise ConfigError unless `target` is a folder of ours and holds nothing else.

    `read_listed` returns the names of all files of such a folder (its manifest too), relative to it, and raises
    ValueError, OSError or a MonographError when the folder is none.
    """
    do = "choose another folder, or move it away yourself"
    if not is_plain_folder(target):
        kind = "a link" if target.is_symlink() else "not a folder"
        raise ConfigError(f"will not overwrite {target}", why=f"it is {kind}; only {what} is replaced", do=do)
    try:
        foreign = find_foreign(target, read_listed(target))
    except (ValueError, OSError, LookupError, TypeError, MonographError) as error:
        reason = ": ".join(filter(None, (error.what, error.why))) if isinstance(error, MonographError) else str(error)
        raise ConfigError(f"will not overwrite {target}", why=f"it is not {what}: {reason}", do=do) from None
    if locked := _find_locked(target):
        raise ConfigError(f"will not overwrite {target}", why=f"nothing can be deleted from {locked}", do=do)
    if foreign:
        names = ", ".join(foreign[:3]) + (f" and {len(foreign) - 3} more" if len(foreign) > 3 else "")
        raise ConfigError(f"will not overwrite {target}", why=f"it holds what is not {what}: {names}", do=do)


def replace_folder(prepared: Path, target: Path, what: str, read_listed: Callable[[Path], Collection[str]]) -> None:
    """Give a prepared folder the name of an older one, which is checked again and then deleted."""
    if not os.path.lexists(target):
        os.rename(prepared, target)
        return
    check_replaceable(target, what, read_listed)
    old = target.with_name(f".old-{target.name}-{secrets.token_hex(4)}")
    os.rename(target, old)
    try:
        os.rename(prepared, target)
    except OSError:
        os.rename(old, target)
        raise
    check_replaceable(old, what, read_listed)
    remove_made(old)
