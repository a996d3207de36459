"""torch's elastic agent, as patient as a job says. Checked on 2.11, which gives ranks 30 s to end whatever is asked,
and on 2.13, which does so where it stops them only to start them again."""

import logging
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api as torch_api
from torch.distributed.elastic.multiprocessing.api import PContext

_SECONDS_WITHOUT_A_PEER = 30
"""What torch gives: ranks whose peers are gone cannot finish their step, so there is nothing to wait for."""
SECONDS_ONCE_ASKED_AGAIN = 10
"""How long ranks may take to end after a second request. One that hangs in C code or is suspended obeys no signal."""


@contextmanager
def quiet_agent() -> Iterator[None]:
    """Inside, torch logs nothing about ranks that fail or are stopped: who says it in words needs no other lines."""
    log = logging.getLogger(torch_api.__name__)
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


@contextmanager
def patient_agent(seconds: int, requests: Sequence[str] = ()) -> Iterator[set[int]]:
    """Inside, an agent waits so long for ranks that it asked to end, also for those that make room for a new node.

    Once `requests` holds a second one, the ranks are killed soon. Yields the pids of ranks that had ended before the
    agent began to end the others.
    """
    agents: Any = LocalElasticAgent
    stop, shutdown, close = agents._stop_workers, agents._shutdown, PContext.close
    ended: set[int] = set()
    closed: WeakSet[PContext] = WeakSet()

    def note_ended(context: Any, *args: Any) -> None:
        # torch closes a context up to three times, and after the first time it has ended the ranks itself
        if context not in closed:
            closed.add(context)
            handlers = getattr(context, "subprocess_handlers", {}).values()
            ended.update(each.proc.pid for each in handlers if each.proc.poll() is not None)
        close(context, *args)

    def end(agent: Any, death_sig: signal.Signals = signal.SIGTERM, timeout: int | None = None) -> None:
        context = agent._pcontext
        if context is not None:
            limit = seconds if timeout is None else timeout
            limit = min(limit, SECONDS_ONCE_ASKED_AGAIN) if len(requests) > 1 else limit
            context.close = lambda number=None, *_: type(context).close(context, number, limit)
        shutdown(agent, death_sig)

    def asked_to_end(agent: Any, death_sig: signal.Signals = signal.SIGTERM, timeout: int | None = None) -> None:
        # 2.13 hands over a limit of its own, 2.11 none. SIGTERM is what agents send after a failure elsewhere.
        is_failure = death_sig == signal.SIGTERM and not _is_whole(agent._worker_group)
        end(agent, death_sig, timeout=_SECONDS_WITHOUT_A_PEER if is_failure else None)

    def make_room(agent: Any, group: WorkerGroup) -> None:
        end(agent, timeout=None if _is_whole(group) else _SECONDS_WITHOUT_A_PEER)

    agents._stop_workers, agents._shutdown = make_room, asked_to_end
    PContext.close = note_ended  # type: ignore[method-assign, assignment]
    try:
        yield ended
    finally:
        agents._stop_workers, agents._shutdown = stop, shutdown
        PContext.close = close  # type: ignore[method-assign]


def _is_whole(group: WorkerGroup) -> bool:
    """Whether all nodes of this round are still in it. A node whose ranks failed has left it, to wait for the next."""
    holder = getattr(group.spec.rdzv_handler, "_state_holder", None)
    return holder is None or len(holder.state.participants) >= (group.group_world_size or 0)
