"""Who can write to files and folders besides this user. Loads without torch."""

import grp
import os
import pwd
import stat
from collections.abc import Iterable
from pathlib import Path


def find_writer(found: os.stat_result) -> str:
    """Who else can write there, with owner or mode; empty when only this user and root can."""
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to user {_name_user(found.st_uid)}"
    if mode & stat.S_IWOTH:
        return f"mode {mode:04o} lets everybody write"
    if mode & stat.S_IWGRP and not _is_private_group(found.st_gid, found.st_uid):
        return f"mode {mode:04o} lets group {_name_group(found.st_gid)} write"
    return ""


def find_exposed(paths: Iterable[Path]) -> list[str]:
    """`PATH: who else can write there` for all of these that exist and are not this user's or root's alone."""
    found = []
    for path in paths:
        try:
            writer = find_writer(path.stat())
        except OSError:
            continue
        if writer:
            found.append(f"{path}: {writer}")
    return found


def _is_private_group(group: int, user: int) -> bool:
    """Whether a group has the owner's name and no other members, as many systems make one for every user."""
    try:
        entry = grp.getgrgid(group)
        name = pwd.getpwuid(user).pw_name
    except KeyError:
        return False
    return entry.gr_name == name and set(entry.gr_mem) <= {name}


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
