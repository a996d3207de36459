"""Dropout that is the same when it is recomputed, chunked, sharded or captured."""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from monograph.errors import ConfigError
from monograph.kernels.counter_random import stream_of
from monograph.kernels.random import dropout
from monograph.models.parallel_plan import ModuleRule, ParallelForm, ParallelPlan

SharedDim = Literal["sequence", "channels"]


class Dropout(nn.Module):
    """Zero elements at random and scale the others; which ones follows from the seed, the module's path in its model
    and the position of the element.

    In eval mode, and with probability 0, values pass unchanged. `shared` says what tensor-parallel ranks divide where
    the module is: the sequence (of the residual stream), or the channels (between a column- and a row-parallel matmul).
    """

    stream: Tensor
    """The number of the stream: a buffer, so that blocks with dropout are identical but for their state."""

    def __init__(self, probability: float, *, shared: SharedDim = "sequence") -> None:
        super().__init__()
        if not 0.0 <= probability < 1.0:
            raise ConfigError(f"dropout probability must be >= 0 and < 1, got {probability}")
        self.probability, self.shared = probability, shared
        self.find_starts: Callable[[Tensor, Tensor], Tensor] = find_row_starts
        self.register_buffer("stream", torch.zeros((), dtype=torch.int64), persistent=False)

    def reset_at(self, path: str) -> None:
        """Draw from the stream that has the module's path as its name."""
        if not self.stream.is_meta:
            self.stream.fill_(stream_of(path))

    def plan_parallel(self) -> ParallelPlan:
        """Ranks drop what one device drops in their part of the value."""
        return ParallelPlan(modules=(ModuleRule(pattern="", form=ParallelForm.RANDOM_POSITIONS),))

    def forward(self, value: Tensor, seed: Tensor, token_index: Tensor) -> Tensor:
        """Dropout of value [batch, sequence, channels]; `token_index` [batch, sequence] numbers the tokens of all data,
        of the whole sequence also where the value is a tensor-parallel rank's slice of it."""
        if not self.training or self.probability == 0.0:
            return value
        return dropout(value, seed + self.stream, self.find_starts(value, token_index), self.probability)


def find_row_starts(value: Tensor, token_index: Tensor) -> Tensor:
    """The position of each token's first channel, in all tokens' channels."""
    return token_index * value.shape[-1]
