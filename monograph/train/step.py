"""What the trainer trains: anything that can run one micro-batch. It knows nothing of models, meshes or graphs."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from monograph.train.data.batch import Batch


class Step(Protocol):
    """Forward, loss and backward of one micro-batch, and what surrounds an update."""

    device: torch.device
    parameters: Mapping[str, Tensor]
    """The stored tensors the optimizer updates, by name; gradients add up in `.grad`."""
    data_part: tuple[int, int]
    """Which part of each global batch this process reads, and into how many it is divided."""
    backend: Any
    """The compiler of this step, None when it is not compiled."""
    weight_cache: Any
    """Narrow copies of the parameters that the optimizer may write along with them; None when there are none."""

    @property
    def compiled_graphs(self) -> int | None:
        """How many graphs were compiled so far: a number that keeps growing means recompilation."""
        ...

    def __call__(self, batch: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]) -> Tensor:
        """Add this micro-batch's gradients; return its share of the loss, detached."""
        ...

    def evaluate(self, batch: Mapping[str, Tensor], normalizers: Mapping[str, Tensor]) -> Tensor:
        """This micro-batch's share of the loss without gradients or metrics."""
        ...

    def sum_normalizers(self, batches: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """What sums of an update are divided by: counts of these micro-batches summed over all processes."""
        ...

    def total_loss(self, share: Tensor) -> Tensor:
        """This process's share of the loss summed over all processes."""
        ...

    def grad_norm(self) -> Tensor:
        """The 2-norm of the whole gradient, every element counted once."""
        ...

    def finish_batch(self) -> dict[str, Tensor]:
        """Before an update: the metrics of the global batch; the model's per-update state follows them."""
        ...

    def state(self) -> dict[str, Tensor]:
        """The model's part of a checkpoint."""
        ...

    def close(self) -> None:
        """Release what must not outlive the process groups."""
        ...

    def laid_out_like(self, name: str, value: Tensor) -> Tensor:
        """A tensor shaped like parameter `name`, in the form a checkpoint needs to know its layout."""
        ...


def to_device(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """The tensors of a batch by name, moved to the device."""
    return {name: value.to(device, non_blocking=True) for name, value in batch.tensors.items()}
