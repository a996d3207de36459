"""The note a failing rank leaves for the launcher, written whole or not at all.

torch's launcher reads it as JSON. A rank that the launcher ends in the middle of writing would leave half a note, and
the launcher itself would fail on that, instead of saying which rank failed first.
"""

import os
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from monograph.compat.environment import variables_set

VARIABLE = "TORCHELASTIC_ERROR_FILE"
"""Where torch's launcher expects the note; unset without a launcher."""


def record_failure(error: BaseException) -> None:
    """Note why this rank fails, before the others fail too because its connections close."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    part = f"{path}.part"
    with variables_set({VARIABLE: part}):
        get_error_handler().record_exception(error)
    if Path(part).exists():
        os.replace(part, path)
