"""Dropout that is the same when it is recomputed, chunked, sharded or captured."""

from torch import Tensor, nn

from monograph.errors import ConfigError
from monograph.kernels.random import dropout


class Dropout(nn.Module):
    """Zero elements at random and scale the others; which ones follows from the seed, `stream` and their positions.

    Give every module its own `stream`, its path for instance: equal streams have equal masks. In eval mode, and with
    probability 0, values pass unchanged.
    """

    def __init__(self, probability: float, stream: str) -> None:
        super().__init__()
        if not 0.0 <= probability < 1.0:
            raise ConfigError(f"dropout probability must be >= 0 and < 1, got {probability}")
        self.probability, self.stream = probability, stream

    def forward(self, value: Tensor, seed: Tensor, positions: Tensor) -> Tensor:
        """`positions` has the value's shape, and says where each element stands in the whole, unsharded tensor."""
        if not self.training or self.probability == 0.0:
            return value
        return dropout(value, seed, positions, self.probability, self.stream)


def element_positions(rows: Tensor, columns: Tensor, width: int) -> Tensor:
    """Positions [..., columns] of the elements in rows [...] and columns [columns] of a tensor with rows of this width.

    Rows and columns are global numbers: of the token in the batch of all ranks, of the channel in the whole layer.
    """
    return rows.unsqueeze(-1) * width + columns
