"""How well a model predicts texts: the loss of every token, from windows over whole documents."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from monograph.errors import MonographError
from monograph.labels import IGNORED_LABEL
from monograph.models.model import Model, find_scalars
from monograph.models.sequence_part import WHOLE


@dataclass(frozen=True)
class TokenWindow:
    """Tokens that are read at once, and how many of the last ones are scored."""

    tokens: np.ndarray
    scored: int


@dataclass
class Perplexity:
    """Sums over the texts of a set."""

    documents: int = 0
    tokens: int = 0
    """Tokens that were predicted: all but the first of a document."""
    bytes: int = 0
    nll: float = 0.0
    """The sum of their negative log likelihoods, in nats."""

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nll / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """What the model is on average undecided between, token by token."""
        return math.exp(self.loss) if self.loss < 700 else math.inf

    @property
    def bits_per_byte(self) -> float:
        """The same for bytes of UTF-8, which does not depend on the tokenizer."""
        return self.nll / math.log(2) / self.bytes if self.bytes else math.nan


def cut_windows(document: np.ndarray, seq_len: int, stride: int, *, first: int = 1) -> Iterator[TokenWindow]:
    """Windows of up to `seq_len` tokens that score every token from `first` on exactly once, `stride` at a time."""
    scored = first
    while scored < len(document):
        stop = min(len(document), seq_len + 1 if scored == 1 else scored + stride)
        start = max(0, stop - seq_len - 1)
        yield TokenWindow(document[start:stop], stop - scored)
        scored = stop


@torch.no_grad()
def measure(
    model: Model,
    documents: Iterable[tuple[np.ndarray, int]],
    *,
    device: torch.device,
    seq_len: int,
    stride: int,
    batch_size: int,
) -> Perplexity:
    """The perplexity of documents, given as tokens and the number of bytes they are made of."""
    found = Perplexity()
    waiting: list[TokenWindow] = []
    for tokens, size in documents:
        found.documents += 1
        found.bytes += size
        waiting += cut_windows(tokens, seq_len, stride)
        while len(waiting) >= batch_size:
            add_batch(found, model, waiting[:batch_size], device)
            del waiting[:batch_size]
    if waiting:
        add_batch(found, model, waiting, device)
    return found


def add_batch(found: Perplexity, model: Model, windows: Sequence[TokenWindow], device: torch.device) -> None:
    """Score some windows; shorter ones end in padding, which no token before it sees."""
    length = max(len(window.tokens) for window in windows) - 1
    tokens = torch.zeros(len(windows), length, dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORED_LABEL)
    for row, window in enumerate(windows):
        ids = torch.from_numpy(window.tokens.astype(np.int64))
        size = len(ids) - 1
        tokens[row, :size] = ids[:-1]
        labels[row, size - window.scored : size] = ids[len(ids) - window.scored :]
    found.nll += check_loss(sum_loss(model, tokens, labels, device), f"the first {found.documents} documents")
    found.tokens += sum(window.scored for window in windows)


def check_loss(loss: float, texts: str) -> float:
    """The loss itself; an error for NaN and inf, which would make a score of the texts before and after."""
    if math.isfinite(loss):
        return loss
    raise MonographError(
        f"the loss of {texts} is {loss}",
        why="the weights are finite, and the model computes a value that its dtype cannot hold",
        do="--dtype float32; or use a checkpoint from before the model diverged",
    )


def sum_loss(model: Model, tokens: torch.Tensor, labels: torch.Tensor, device: torch.device) -> float:
    """The summed loss of a batch, by the forward that training uses: its counts are 1, so it divides by nothing."""
    positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
    batch = {
        "tokens": tokens,
        "labels": labels,
        "positions": positions,
        "documents": torch.zeros_like(tokens),
        "samples": torch.arange(tokens.shape[0]),
    }
    inputs = {name: value.to(device) for name, value in model.step_inputs(batch, WHOLE).items()}
    ones = {name: torch.ones((), dtype=torch.int64, device=device) for name in find_scalars(model)}
    return float(model(**inputs, **ones).loss)
