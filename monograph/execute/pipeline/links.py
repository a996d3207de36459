"""The links of one pipeline rank: values go in the order that was checked, and whoever waits is named."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from monograph.axes import Axis, Group
from monograph.capture.stage import CarrySpec
from monograph.compat.ops import find_process_group, wait_tensor
from monograph.errors import MonographError
from monograph.parallel.deadline import deadline
from monograph.parallel.groups import Groups
from monograph.parallel.pipeline.point_to_point import RECV, SEND, find_group
from monograph.parallel.pipeline.transfers import Link

Specs = Mapping[str, CarrySpec]


class PipelineStalled(MonographError):
    """A rank of the pipeline did not get what it waited for."""


@dataclass
class Pending:
    """Values that are on their way."""

    what: str
    peer: int
    values: dict[str, Tensor]
    """By name; of a send, what is waited for."""
    held: list[Tensor]
    """What must stay alive until then."""


class Links:
    """Sends to and receives from other pipeline ranks that have the same data. Values go in the order of their names.

    gloo cannot reach a GPU's memory: values then go through the host's.
    """

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.own = groups.mesh.coordinate(groups.rank, Axis.PP)
        self.ranks = groups.mesh.members(Group.PP, groups.rank)
        self.device = groups.device
        self.timeout_seconds = groups.timeout_seconds
        is_staged = groups.device.type == "cuda" and "nccl" not in str(find_process_group(Group.PP_UP.value).name())
        self.wire = torch.device("cpu") if is_staged else groups.device
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()

    def connect(self, links: Iterable[Link]) -> None:
        """Send a number over every link, one after the other and in one order on all ranks.

        NCCL makes the communicator of a link when it is first used, and both ends wait for it there, inside of the
        library. Within a schedule that would make posting wait, which the schedule was not checked for.
        """
        token = torch.zeros(1, device=self.device)
        spec = CarrySpec((1,), token.dtype, (1,))
        for source, target in sorted(links):
            if self.own not in (source, target):
                continue
            what = f"the link from pipeline rank {source} to {target}"
            with deadline(what, seconds=self.timeout_seconds, rank=self.groups.rank):
                if self.own == source:
                    self.wait(self.send("the first number", target, {"token": token}), "its first send")
                else:
                    self.wait(self.receive("the first number", source, {"token": spec}), "its first receive")
                if self.device.type == "cuda":
                    torch.cuda.synchronize(self.device)  # a wait for NCCL orders streams only

    def send(self, what: str, peer: int, values: Mapping[str, Tensor]) -> Pending:
        """Start to send values; they are the same when they are waited for."""
        group = find_group(self.own, peer).value
        pending = Pending(what, peer, {}, [])
        with self._explained(what, peer, "the send"):
            for name, value in sorted(values.items()):
                ready = value.to(self.wire).contiguous()
                pending.held.append(ready)
                pending.values[name] = SEND(ready, peer, self._sent[peer], group)
                self._sent[peer] += 1
        return pending

    def receive(self, what: str, peer: int, specs: Specs) -> Pending:
        """Start to receive values of this form."""
        group = find_group(peer, self.own).value
        pending = Pending(what, peer, {}, [])
        with self._explained(what, peer, "the receive"):
            for name, spec in sorted(specs.items()):
                shape = list(spec.shape)
                pending.values[name] = RECV(shape, spec.dtype, self.wire, peer, self._received[peer], group)
                self._received[peer] += 1
        return pending

    def wait(self, pending: Pending, action: str) -> dict[str, Tensor]:
        """The values, once they are here (or gone); an error says which action waited, and for whom."""

        def wait() -> dict[str, Tensor]:
            return {name: wait_tensor(value).to(self.device) for name, value in pending.values.items()}

        observer = self.groups.observer
        with self._explained(pending.what, pending.peer, action):
            return wait() if observer is None else observer.wait(wait)

    @contextmanager
    def _explained(self, what: str, peer: int, action: str) -> Iterator[None]:
        """Say who waited for whom when a send or receive fails, while it is posted or waited for."""
        try:
            yield
        except RuntimeError as error:
            raise PipelineStalled(
                f"pipeline rank {self.own} (rank {self.ranks[self.own]}) waited in {action} for {what} of "
                f"pipeline rank {peer} (rank {self.ranks[peer]})",
                why=f"{str(error).splitlines()[0]}; a rank has died, hangs, or took longer than "
                f"parallelism.timeout_seconds {self.timeout_seconds:g}",
                do="look at the log of that rank; continue with --checkpoint.load latest",
            ) from error
