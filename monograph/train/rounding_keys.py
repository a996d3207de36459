"""Which random bits round the moments of each parameter: by seed, parameter, update and position, on any mesh."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from monograph.kernels.counter_random import stream_of


class RoundingKeys:
    """A key for each parameter and update, and where the rows of each shard lie in the whole parameter."""

    def __init__(self, parameters: Mapping[str, Tensor], *, seed: int, row_starts: Mapping[str, Tensor]) -> None:
        device = next(iter(parameters.values())).device
        whole = torch.zeros(1, dtype=torch.int64)
        self.streams = torch.tensor(
            [stream_of(f"moments of {name} with seed {seed}") for name in parameters], device=device
        )
        self.row_starts = [row_starts.get(name, whole).to(device) for name in parameters]
        """In the order of the parameters; the key of each counts updates on from the number of its stream."""

    def draw(self, updates: Tensor) -> Sequence[tuple[Tensor, Tensor]]:
        """Of every parameter, in its update of this number (int64): its key and the positions of its rows. Nothing is
        read on the host."""
        return [(key.data, starts) for key, starts in zip(self.streams + updates, self.row_starts, strict=True)]
