"""The next token from logits: the likeliest, or drawn from a distribution that temperature and top-p shape.

Every row draws from a stream of its own, by its number and the seed: what it gets does not depend on its neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from monograph.config.ranges import check_range


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen."""

    temperature: float = 0.0
    """Logits are divided by it; 0 is greedy decoding."""
    top_p: float = 1.0
    """Draw from the fewest tokens that have this share of the probability."""
    repetition_penalty: float = 1.0
    """Logits of tokens that a row has already are divided by it (multiplied, where negative)."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_range(self, "temperature", 0, 100, why="0 is greedy decoding")
        check_range(self, "top_p", 1e-6, 1, why="it is a probability mass")
        check_range(self, "repetition_penalty", 1e-2, 100, why="logits of repeated tokens are divided by it")


class Sampler:
    """Chooses the next tokens of several rows, step by step."""

    def __init__(self, sampling: Sampling, rows: Sequence[int]) -> None:
        self.sampling = sampling
        self._streams = [torch.Generator().manual_seed(_mix(sampling.seed, row)) for row in rows]

    @property
    def reads_texts(self) -> bool:
        """Whether the tokens that a row has matter."""
        return self.sampling.repetition_penalty != 1.0

    def choose(self, logits: Tensor, texts: Sequence[Sequence[int]]) -> list[int]:
        """The next token of every row, from logits [rows, vocabulary]; `texts` are the tokens it has so far."""
        logits = logits.float()
        if self.reads_texts:
            logits = penalize(logits, texts, self.sampling.repetition_penalty)
        if self.sampling.temperature == 0:
            return logits.argmax(-1).tolist()
        draws = torch.stack([torch.rand((), generator=stream, dtype=torch.float64) for stream in self._streams])
        logits = logits.double()  # a tiny temperature takes differences beyond float32, and then to -inf, never to NaN
        logits = (logits - logits.amax(-1, keepdim=True)) / self.sampling.temperature
        return draw_tokens(logits, draws.to(logits.device), self.sampling.top_p)


def penalize(logits: Tensor, texts: Sequence[Sequence[int]], penalty: float) -> Tensor:
    """Logits with a penalty on every token that is in a row's text already."""
    logits = logits.clone()
    for row, text in zip(logits, texts, strict=True):
        seen = torch.tensor(sorted(set(text)), device=logits.device)
        row[seen] = torch.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)
    return logits


def draw_tokens(logits: Tensor, draws: Tensor, top_p: float) -> list[int]:
    """Tokens by inverting the distribution at `draws` in [0, 1), over the likeliest that have a share of `top_p`."""
    probabilities, order = logits.double().softmax(-1).sort(dim=-1, descending=True, stable=True)
    total = probabilities.cumsum(-1)
    is_in = total - probabilities < top_p
    kept = torch.where(is_in, probabilities, 0.0).cumsum(-1)
    index = torch.searchsorted(kept, (draws * kept[:, -1]).unsqueeze(-1), right=True)
    index = torch.minimum(index, is_in.sum(-1, keepdim=True) - 1)
    return order.gather(-1, index).squeeze(-1).tolist()


def _mix(seed: int, row: int) -> int:
    return (seed * 0x9E3779B97F4A7C15 + row * 0xBF58476D1CE4E5B9) % (1 << 63)
