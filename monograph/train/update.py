"""One optimizer update in two halves: gather the gradients of every micro-batch, then change the weights.

Halves, because `verify` looks at the gradients in between; the trainer runs one straight after the other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from monograph.models.model import SEED
from monograph.train.data.batch import Batch
from monograph.train.optimizer import Optimizer
from monograph.train.replicas.replicas import Replicas
from monograph.train.step import Step


@dataclass(frozen=True, kw_only=True)
class Updated:
    """What an update left behind, still on the device."""

    grad_norm: Tensor
    metrics: Mapping[str, Tensor]
    """Sums over the global batch, such as `expert_load`."""


def add_gradients(step: Step, batches: Sequence[Batch], replicas: Replicas | None = None) -> Tensor:
    """Run every micro-batch; their gradients add up, over replicas as well. Returns the loss of the whole update."""
    replicas = replicas or Replicas()
    tensors = [batch.tensors for batch in batches]
    scalars = step.compute_scalars(tensors)
    replicas.add_up([value for name, value in scalars.items() if name != SEED])
    share = step.accumulate(tensors, scalars)
    replicas.add_up([share, *step.find_sums()])
    return step.total_loss(share)


def apply_update(step: Step, optimizer: Optimizer, *, loss: Tensor, lr: float, max_norm: float) -> Updated:
    """Clip, change the weights, move the expert biases, drop the gradients; a refused update changes none of them."""
    norm = step.grad_norm()
    optimizer.step(lr, loss=loss, grad_norm=norm, max_norm=max_norm)
    metrics = step.finish_batch(optimizer.refusal)
    optimizer.clear_gradients()
    return Updated(grad_norm=norm, metrics=metrics)
