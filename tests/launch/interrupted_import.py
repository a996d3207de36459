"""A module that is interrupted while it is imported, in a callback where Python drops what is raised."""

import os
import signal


class Collected:
    """Presses Ctrl-C while it is collected."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)


Collected()


def work():
    """Never reached."""
    return 0
