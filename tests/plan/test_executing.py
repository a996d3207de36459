"""Where a plan is computed: in processes of their own, or here where the system starts none."""

import errno
import os

from monograph.plan import search
from monograph.plan.search import executing


def test_a_plan_is_computed_here_where_shared_memory_is_full(monkeypatch, caplog):
    def refuse(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(search, "ProcessPoolExecutor", refuse)
    monkeypatch.setattr(search.log, "propagate", True)
    with executing(2) as submit:
        assert submit(os.getpid).result() == os.getpid()
    assert "/dev/shm: No space left on device" in caplog.text
