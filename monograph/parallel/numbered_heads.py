"""The numbers that a tensor-parallel rank's heads have in the whole model."""

from torch import Tensor, nn

from monograph.axes import COORDS, Axis


class FirstHead(nn.Module):
    """The number of this rank's first head, where every rank has as many."""

    coords: Tensor

    def __init__(self, coords: Tensor) -> None:
        super().__init__()
        self.register_buffer("coords", coords, persistent=False)

    def forward(self, heads: int) -> Tensor:
        """Of a rank with so many heads."""
        return self.coords[COORDS.index(Axis.TP)] * heads
