"""The leaf layers: projections and the embedding, which know how wide their weights start."""

from torch import nn

from monograph.models.init import Normal, Start


class _Planned:
    """A layer of torch's whose weights start as `plan_init` says.

    Until then they hold whatever was in memory. torch would draw values of its own first, on the meta device by
    importing all of its compiler: a second of every start.
    """

    def reset_parameters(self) -> None:
        """Leave the weights as they are."""


class Linear(_Planned, nn.Linear):
    """A projection without a bias."""

    def __init__(self, in_features: int, out_features: int, *, init_std: float) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.init_std = init_std

    def plan_init(self) -> dict[str, Start]:
        """How the weight starts."""
        return {"weight": Normal(self.init_std)}


class Embedding(_Planned, nn.Embedding):
    """One row per token id."""

    def __init__(self, vocab_size: int, dim: int, *, init_std: float) -> None:
        super().__init__(vocab_size, dim)
        self.init_std = init_std

    def plan_init(self) -> dict[str, Start]:
        """How the weight starts."""
        return {"weight": Normal(self.init_std)}
