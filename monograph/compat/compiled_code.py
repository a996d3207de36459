"""The folder in which Inductor and Triton keep the code that they compile and run again: nobody else can write it."""

import importlib
import os
from contextlib import suppress
from pathlib import Path

from monograph.errors import ConfigError
from monograph.permissions import find_exposed, find_exposed_parents
from monograph.system.cache_folder import find_cache_folder, make_private_folder
from monograph.system.foreign_text import show

CODE_FOLDER = "TORCHINDUCTOR_CACHE_DIR"
"""torch's variable for the folder; Triton's lies in it, unless TRITON_CACHE_DIR names another."""


def keep_compiled_code_private() -> None:
    """Have Inductor and Triton keep their code where no other user can write: they run what lies there.

    torch's own place is a name below the folder for temporary files. Any user of the machine can make that folder
    first, and then exchanges what this user compiles into it. A folder that the environment names stays.
    """
    if os.environ.get(CODE_FOLDER):
        return
    folder = Path(importlib.import_module("torch._inductor.runtime.cache_dir_utils").default_cache_dir())
    with suppress(OSError):
        folder.mkdir(mode=0o700)
    if folder.is_symlink() or not folder.is_dir() or find_exposed([folder]) or find_exposed_parents(folder):
        folder = find_cache_folder("inductor")
        make_private_folder(folder)
        if exposed := find_exposed_parents(folder):
            raise ConfigError(
                f"compiled code would be kept in {show(folder)}",
                why=f"other users could replace it ({show(exposed[0])})",
                do=f"set {CODE_FOLDER} to a folder that only you can write to",
            )
    os.environ[CODE_FOLDER] = str(folder)
