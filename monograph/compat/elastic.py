"""torch's elastic agent. Checked on 2.13, whose agent gives ranks that it stops to start them again 30 s, whatever
`shutdown_timeout` says: that one is for an agent that is itself asked to stop."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

_SECONDS_WITHOUT_A_PEER = 30
"""What torch gives: ranks whose peers are gone cannot finish their step, so there is nothing to wait for."""


@contextmanager
def patient_restarts() -> Iterator[None]:
    """Inside, ranks that are stopped because a node joins may save first, for as long as `shutdown_timeout`."""
    agents: Any = LocalElasticAgent
    before = agents._stop_workers

    def stop(agent: Any, group: WorkerGroup) -> None:
        agent._shutdown(timeout=agent._shutdown_timeout if _is_whole(group) else _SECONDS_WITHOUT_A_PEER)

    agents._stop_workers = stop
    try:
        yield
    finally:
        agents._stop_workers = before


def _is_whole(group: WorkerGroup) -> bool:
    """Whether all nodes of this round are still in it. A node whose ranks failed has left it, to wait for the next."""
    holder = getattr(group.spec.rdzv_handler, "_state_holder", None)
    return holder is None or len(holder.state.participants) >= (group.group_world_size or 0)
