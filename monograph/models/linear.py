"""The leaf layers: projections and the embedding, which know how wide their weights start."""

from torch import nn

from monograph.models.init import Normal, Start


class Linear(nn.Linear):
    """A projection without a bias."""

    def __init__(self, in_features: int, out_features: int, *, init_std: float) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.init_std = init_std

    def plan_init(self) -> dict[str, Start]:
        """How the weight starts."""
        return {"weight": Normal(self.init_std)}


class Embedding(nn.Embedding):
    """One row per token id."""

    def __init__(self, vocab_size: int, dim: int, *, init_std: float) -> None:
        super().__init__(vocab_size, dim)
        self.init_std = init_std

    def plan_init(self) -> dict[str, Start]:
        """How the weight starts."""
        return {"weight": Normal(self.init_std)}
