"""What a simulated update starts from: random weights and buffers in fp64, and micro-batches of random tokens.

The first weights of a run hide faults: norms are 1, biases 0, and experts are chosen evenly.
"""

import math

import numpy as np
import torch
from torch import Tensor

from monograph.labels import IGNORED_LABEL
from monograph.models.model import Model
from monograph.parallel.mesh import Mesh
from monograph.train.config import TrainerConfig
from monograph.train.data.batch import SAMPLES
from monograph.verify.data import open_whole_updates
from monograph.verify.reference import buffers_of

MAX_BATCHES = 16
"""Different micro-batches of one round; where a mesh has more data-parallel ranks, some of them read the same."""
HANDS = 4
"""Different choices of micro-batches that groups which exchange tokens get, where there are many groups."""
SPREAD = 0.2
"""Standard deviation of what is added to every weight and buffer."""
DRAWN = frozenset(("tokens", "labels", "positions", "documents", SAMPLES))


@torch.no_grad()
def randomize(model: Model, seed: int) -> None:
    """Turn a model into fp64, and move every parameter and persistent buffer away from its first value."""
    model.double()
    generator = torch.Generator().manual_seed(seed)
    for value in [*model.parameters(), *buffers_of(model).values()]:
        if value.is_floating_point():
            value.add_(torch.randn(value.shape, generator=generator, dtype=value.dtype), alpha=SPREAD)


def share_batches(mesh: Mesh, seed: int) -> list[int]:
    """The micro-batch that each data-parallel rank reads in a round: its own, or where there are many one of a few.

    Groups that exchange tokens with each other get one of a few hands, so that what one of them computes others need
    not compute again; hands are dealt at random, and neighbours hardly ever get the same.
    """
    parts, random = mesh.data_parts, np.random.default_rng(seed)
    if parts <= MAX_BATCHES:
        return list(range(parts))
    size = math.gcd(parts, max(1, mesh.ep * mesh.etp // (mesh.tp * mesh.cp)))
    count = max(HANDS, MAX_BATCHES // size)
    cards = np.resize(np.arange(MAX_BATCHES), count * size)
    hands = random.permutation(cards).reshape(count, size)
    dealt = hands[random.permutation(np.arange(parts // size) % count)]
    return [int(number) for number in dealt.reshape(-1)]


def draw_batches(config: TrainerConfig, model: Model, count: int, seed: int) -> list[dict[str, Tensor]]:
    """Micro-batches in host memory: tokens at random, some without a label, in documents where the model reads any.

    A model that reads other tensors gets them from the run's own data.
    """
    spec = model.batch_spec
    if not set(spec) <= DRAWN:
        with open_whole_updates(config, count) as updates:
            return [dict(batch.tensors) for batch in next(updates)][:count]
    rows, length = config.training.local_batch_size, config.training.seq_len
    random = np.random.default_rng(seed)
    vocabulary = config.model.find_vocab_size() or 2
    most = getattr(config.model, "max_documents", 0) or length
    drawn = (_draw(random, rows, length, vocabulary, most) for _ in range(count))
    return [batch | {SAMPLES: torch.arange(number * rows, (number + 1) * rows)} for number, batch in enumerate(drawn)]


def _draw(random: np.random.Generator, rows: int, length: int, vocabulary: int, most: int) -> dict[str, Tensor]:
    labels = random.integers(0, vocabulary, (rows, length))
    labels[random.random((rows, length)) < random.uniform(0.05, 0.4)] = IGNORED_LABEL
    starts = random.random((rows, length)) < 4 / length
    starts[:, 0] = True
    starts &= starts.cumsum(1) <= most
    documents = starts.cumsum(1) - 1
    begin = np.maximum.accumulate(np.where(starts, np.arange(length), 0), axis=1)
    drawn = {
        "tokens": random.integers(0, vocabulary, (rows, length)),
        "labels": labels,
        "positions": np.arange(length) - begin,
        "documents": documents,
    }
    return {name: torch.from_numpy(value) for name, value in drawn.items()}
