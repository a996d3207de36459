"""Users besides this one who can write to files and folders: by owner, mode, access control list and group.

Groups are looked up in the group database and in /etc/passwd; directory services (LDAP) do not list their users, so of
those only the members that the group itself names are known. Loads without torch.
"""

import errno
import grp
import os
import pwd
import stat
import struct
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from monograph.system.foreign_json import UnusableFile, read_file

_ACL = "system.posix_acl_access"
_ACL_VERSION = 2
_NAMED_USER, _GROUP_OBJ, _NAMED_GROUP, _MASK = 0x02, 0x04, 0x08, 0x10
_WRITE = 2
_PASSWD = Path("/etc/passwd")
_UID_MAP = Path("/proc/self/uid_map")
_OVERFLOW_UID = Path("/proc/sys/kernel/overflowuid")
_NO_ACL = (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENOENT)
_UNREADABLE = b"unreadable"


def find_writer(found: os.stat_result, acl: bytes = b"") -> str:
    """Another user who can write to a file, with the reason; empty when only this user and root can.

    `acl` is what `read_acl` returns for it: with an access control list, the group bits of the mode are its mask.
    """
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {_name_user(found.st_uid)}"
    if mode & stat.S_IWOTH:
        return f"mode {mode:04o} lets everybody write"
    if acl:
        return _find_acl_writer(found, acl)
    if mode & stat.S_IWGRP and not _is_private_group(found.st_gid, found.st_uid):
        return f"mode {mode:04o} lets group {_name_group(found.st_gid)} write"
    return ""


def read_acl(target: Path | int) -> bytes:
    """The access control list of a path or an open file; empty when there is nothing beyond the mode."""
    try:
        return os.getxattr(target, _ACL)
    except AttributeError:  # no Linux
        return b""
    except OSError as error:
        return b"" if error.errno in _NO_ACL else _UNREADABLE


def find_exposed(paths: Iterable[Path]) -> list[str]:
    """`PATH: another writer` for all of these that exist and that others than this user and root can write."""
    found = []
    for path in paths:
        try:
            writer = find_writer(path.stat(), read_acl(path))
        except OSError:
            continue
        if writer:
            found.append(f"{path}: {writer}")
    return found


def find_exposed_parents(path: Path) -> list[str]:
    """`PATH: another writer` for folders above a path, and links on the way, with which others can replace it.

    In a folder with the sticky bit, as /tmp, only the owner of an entry can rename it.
    """
    found: dict[Path, str] = {}
    for inner in dict.fromkeys((Path(os.path.abspath(path)), Path(os.path.realpath(path)))):
        for entry in (inner, *inner.parents):
            try:
                if entry.is_symlink() and (owner := entry.lstat().st_uid) not in (os.geteuid(), 0):
                    found[entry] = f"it is a link of user {_name_user(owner)}"
                if entry != inner and (writer := _find_renamer(entry)):
                    found[entry] = writer
            except OSError:
                continue
    return [f"{entry}: {writer}" for entry, writer in sorted(found.items())]


def _find_renamer(folder: Path) -> str:
    status = folder.stat()
    if status.st_uid == _find_overflow_uid():  # the owner is outside of this container, as root of the machine is
        status = os.stat_result((*status[:4], 0, *status[5:]))
    if status.st_mode & stat.S_ISVTX and status.st_uid in (os.geteuid(), 0):
        return ""
    return find_writer(status, read_acl(folder))


def _find_acl_writer(found: os.stat_result, acl: bytes) -> str:
    entries = list(_parse_acl(acl))
    if not entries:
        return "it has an access control list that cannot be read"
    mask = next((permissions for tag, permissions, _ in entries if tag == _MASK), _WRITE)
    for tag, permissions, number in entries:
        if not permissions & mask & _WRITE:
            continue
        if tag == _NAMED_USER and number not in (os.geteuid(), 0):
            return f"its access control list lets user {_name_user(number)} write"
        group = {_GROUP_OBJ: found.st_gid, _NAMED_GROUP: number}.get(tag)
        if group is not None and not _is_private_group(group, found.st_uid):
            return f"its access control list lets group {_name_group(group)} write"
    return ""


def _parse_acl(acl: bytes) -> Iterator[tuple[int, int, int]]:
    """Tag, permissions and user or group of each entry (linux/posix_acl_xattr.h); nothing for another layout."""
    if len(acl) % 8 == 4 and int.from_bytes(acl[:4], "little") == _ACL_VERSION:
        yield from struct.iter_unpack("<HHI", acl[4:])


def _is_private_group(group: int, user: int) -> bool:
    """Whether a group is the owner's own, as many systems make one for every user: nobody else is in it.

    Group 0 never is: containers that run under any user id put all of them into it.
    """
    if group == 0:
        return False
    try:
        entry, owner = grp.getgrgid(group), pwd.getpwuid(user)
    except KeyError:
        return False
    if entry.gr_name != owner.pw_name or not set(entry.gr_mem) <= {owner.pw_name}:
        return False
    return _read_primary_groups().get(group, frozenset()) <= {user}


@cache
def _read_primary_groups() -> dict[int, frozenset[int]]:
    """Group -> users whose primary group it is, by /etc/passwd: a group does not list them among its members.

    A directory service can take minutes to list all users, and most refuse to; it is not asked.
    """
    users: dict[int, set[int]] = {}
    try:
        lines = read_file(_PASSWD).decode(errors="replace").split("\n")
    except (OSError, UnusableFile):
        return {}
    for line in lines:
        fields = line.split(":")
        if len(fields) > 3 and fields[2].isdecimal() and fields[3].isdecimal():
            users.setdefault(int(fields[3]), set()).add(int(fields[2]))
    return {group: frozenset(members) for group, members in users.items()}


@cache
def _find_overflow_uid() -> int | None:
    """User id of all owners without a number in this user namespace; None outside of such containers."""
    try:
        if read_file(_UID_MAP).split() == [b"0", b"0", b"4294967295"]:
            return None
        return int(read_file(_OVERFLOW_UID))
    except (OSError, UnusableFile, ValueError):
        return None


def _name_user(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _name_group(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
