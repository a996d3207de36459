"""Kinds of file systems, as Linux lists them. Loads without torch."""

import os
import re
from pathlib import Path

from monograph.system.foreign_text import split_lines

_MOUNTS = Path("/proc/self/mountinfo")
_ESCAPE = re.compile(r"\\([0-7]{3})")
LOCAL_KINDS = frozenset(
    [
        *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "tmpfs", "ramfs", "overlay"),
        *("vfat", "exfat", "ntfs3", "squashfs", "iso9660"),
    ]
)
"""File systems of one machine: names appear at once, and a refusal stays one."""


def is_local(path: Path) -> bool:
    """Whether a path lies on a file system that only this machine uses; False where that is not known."""
    return _read_kind(os.path.realpath(path), _MOUNTS) in LOCAL_KINDS


def _read_kind(path: str, table: Path) -> str:
    """Kind of the file system that is mounted nearest above a path; of two at one place, the later one."""
    try:
        lines = split_lines(table.read_bytes().decode(errors="surrogateescape"))
    except OSError:
        return ""
    nearest, kind = "", ""
    for line in lines:
        place, _, source = line.partition(" - ")
        mounted_at = _ESCAPE.sub(lambda octal: chr(int(octal[1], 8)), place.split(" ")[4])
        if len(mounted_at) >= len(nearest) and f"{path}/".startswith(f"{mounted_at.rstrip('/')}/"):
            nearest, kind = mounted_at, source.split(" ")[0]
    return kind
