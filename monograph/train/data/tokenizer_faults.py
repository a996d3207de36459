"""Errors of the `tokenizers` library as errors of ours, which name the file.

It raises plain Exception, and where its Rust code panics a BaseException, which ends threads and commands without a
word of where it came from. The panic itself is printed by Rust, on the file descriptor of standard error.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from monograph.errors import DataError, MonographError
from monograph.system.foreign_text import show

_STDERR = 2


@contextmanager
def library_errors(what: str, *, do: str, hides_panics: bool = False) -> Iterator[None]:
    """Raise DataError for what the library raises. `hides_panics` holds back what is printed meanwhile and drops it
    after a panic; it is for work on one thread before a run begins."""
    with ExitStack() as stack:
        held = None
        if hides_panics:
            with suppress(OSError):  # it is closed, or there is no room for a file
                held = stack.enter_context(_hold_stderr())
        try:
            yield
        except (MonographError, MemoryError, RecursionError):
            raise
        except Exception as error:
            raise DataError(what, why=show(error), do=do) from None
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            if held is not None:
                held.clear()
            raise DataError(what, why=f"the tokenizers library failed: {show(error)}", do=do) from None


@contextmanager
def _hold_stderr() -> Iterator["_Held"]:
    """Send the file descriptor to a temporary file, and print that afterwards unless it was cleared."""
    held = _Held()
    with tempfile.TemporaryFile() as file:
        before = os.dup(_STDERR)
        os.dup2(file.fileno(), _STDERR)
        try:
            yield held
        finally:
            os.dup2(before, _STDERR)
            os.close(before)
            file.seek(0)
            if not held.is_cleared:
                os.write(_STDERR, file.read())


class _Held:
    is_cleared = False

    def clear(self) -> None:
        self.is_cleared = True
