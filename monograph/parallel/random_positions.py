"""Where a tensor-parallel rank's part of a value lies in the whole: it draws the random numbers of that part."""

import torch
from torch import Tensor, nn

from monograph.axes import COORDS, Axis
from monograph.models.dropout import SharedDim, find_row_starts


class ShardedRowStarts(nn.Module):
    """The positions of the first elements of this rank's rows."""

    coords: Tensor

    def __init__(self, coords: Tensor, degree: int, shared: SharedDim) -> None:
        super().__init__()
        self.degree, self.shared = degree, shared
        self.register_buffer("coords", coords, persistent=False)

    def forward(self, value: Tensor, token_index: Tensor) -> Tensor:
        """Of a value with a slice of the sequence, or with some of the channels."""
        rank = self.coords[COORDS.index(Axis.TP)]
        if self.shared == "channels":
            width = value.shape[-1]
            return token_index * (width * self.degree) + rank * width
        length = value.shape[1]
        here = torch.arange(length, device=value.device) + rank * length
        return find_row_starts(value, token_index.index_select(1, here))
