"""What the trainer trains: anything that can run micro-batches. It knows nothing of models, meshes or graphs."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor

from monograph.axes import Group
from monograph.parallel.observed_group import SendDigests


class Step(Protocol):
    """Forward, loss and backward of an update's micro-batches, and what surrounds an update."""

    device: torch.device
    parameters: Mapping[str, Tensor]
    """The stored tensors, by name, trained or not."""
    data_part: tuple[int, int]
    """Which part of each global batch this process reads, and into how many it is divided."""
    seed: int
    """What every random number of the run depends on."""
    backend: Any
    """The compiler of this step, None when it is not compiled."""
    weight_cache: Any
    """Narrow copies of the parameters that the optimizer may write along with them; None when there are none."""

    @property
    def trained(self) -> Mapping[str, Tensor]:
        """The stored tensors the optimizer updates, by name; gradients add up in `.grad`."""
        ...

    @property
    def decayed(self) -> frozenset[str]:
        """The names of those that weight decay shrinks."""
        ...

    @property
    def compiled_graphs(self) -> int | None:
        """How many graphs were compiled so far: a number that keeps growing means recompilation."""
        ...

    def accumulate(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> Tensor:
        """Add the gradients of an update's micro-batches, in host memory; this process's share of the loss."""
        ...

    def accumulate_one(
        self, batch: Mapping[str, Tensor], scalars: Mapping[str, Tensor], digests: SendDigests
    ) -> Tensor:
        """The same for one micro-batch, whatever an update has; `digests` observes the groups, and is told of parts."""
        ...

    def describe_part(self, part: int) -> str:
        """What runs in a part of `accumulate_one`; empty where there is one part only."""
        ...

    def evaluate_all(self, batches: Sequence[Mapping[str, Tensor]], scalars: Mapping[str, Tensor]) -> Tensor:
        """This process's share of the loss of several micro-batches, without gradients or metrics."""
        ...

    def compute_scalars(self, batches: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """What is the same for all micro-batches of an update: counts summed over all processes, the seed."""
        ...

    def total_loss(self, share: Tensor) -> Tensor:
        """This process's share of the loss summed over all processes."""
        ...

    def grad_norm(self) -> Tensor:
        """The 2-norm of the whole gradient, every element counted once."""
        ...

    def finish_batch(self, refusal: Tensor | None) -> dict[str, Tensor]:
        """The metrics of the global batch; the model's per-update state follows them, unless `refusal` is 1."""
        ...

    def find_sums(self) -> list[Tensor]:
        """What an update has added up so far: gradients and metrics, live, in the same order on every process."""
        ...

    def discard(self) -> None:
        """Drop the gradients and metrics of the micro-batches since the last update."""
        ...

    def op_by_op(self) -> AbstractContextManager[None]:
        """Run whole updates without replaying recordings, so that every collective can be observed."""
        ...

    def find_missing_memory(self) -> int:
        """Bytes that an update op by op would lack, because recordings keep their memory; 0 where it fits."""
        ...

    def find_collectives(self) -> Sequence[str]:
        """What each collective of a micro-batch belongs to, in their order; empty where that is not known."""
        ...

    def find_groups(self) -> set[Group]:
        """The groups that an update communicates over, the same on all ranks of each."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The model's part of a checkpoint."""
        ...

    def close(self) -> None:
        """Release what must not outlive the process groups."""
        ...

    def find_row_starts(self, name: str) -> Tensor:
        """Positions in the whole parameter where the rows of this process's shard begin; rows are equally long."""
        ...

    def laid_out_like(self, name: str, value: Tensor) -> Tensor:
        """A tensor shaped like parameter `name`, in the form a checkpoint needs to know its layout."""
        ...
