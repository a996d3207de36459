"""Small files that are there whole or not at all: written under another name, then renamed."""

import os
import secrets
from pathlib import Path

from monograph.system.own_file import create_own


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, replacing one that is there; whoever reads it sees the old content or the new one.

    An OSError names the file, whatever went wrong.
    """
    prepared = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(create_own(prepared, 0o666), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(prepared, path)
    except BaseException as error:
        prepared.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise
