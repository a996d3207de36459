"""The first that `monograph` imports: until the command line is there, Ctrl-C ends the process without a traceback.

Python would raise in whatever line of an import is running, and drop what is raised in a callback: then the request
would be lost. Nothing is under way yet that could be left half done.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Inside, Ctrl-C is the system's: the process ends at once. Who has chosen something else keeps it."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
