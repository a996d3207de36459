"""Random numbers by seed and position, and dropout: the same in eager mode and in a graph, on a CPU and on a GPU.

torch's generators have a state that every call moves on: recomputed, chunked or sharded, a step would draw other
numbers, so graphs refuse them. Here a number depends on the seed, the name of its stream and its position alone. The
seed is a tensor, an input of the step, so that every step may have another one.
"""

import torch
from torch import Tensor

from monograph.errors import ConfigError
from monograph.kernels import random_on_gpu
from monograph.kernels.counter_random import reference_dropout, reference_random_uniform, stream_of
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


def random_uniform(seed: Tensor, positions: Tensor, stream: str) -> Tensor:
    """A number in [0, 1) for every position, evenly spread, in fp32.

    Args:
        seed: one int64 number, on the device of the positions.
        positions: int64, of any shape: where an element stands in the whole tensor, not in this rank's part of it.
        stream: what the numbers are for, such as a module's path; other streams are independent.
    """
    check_random_inputs(seed, positions)
    return RANDOM_UNIFORM(seed, positions, stream_of(stream))


def dropout(value: Tensor, seed: Tensor, positions: Tensor, probability: float, stream: str) -> Tensor:
    """Set each element to zero with this probability and divide the others by what is left of one.

    Backward does the same to the gradient, from the same numbers: nothing is saved but seed and positions.
    """
    check_random_inputs(seed, positions)
    if not 0.0 <= probability < 1.0:
        raise ConfigError(f"dropout probability must be >= 0 and < 1, got {probability}")
    if value.shape != positions.shape:
        raise ConfigError(
            f"dropout of a value {tuple(value.shape)} with positions {tuple(positions.shape)}",
            why="every element has a position of its own",
            do="compute them with monograph.models.dropout.element_positions",
        )
    return fused_dropout(value, seed, positions, probability, stream_of(stream))


def check_random_inputs(seed: Tensor, positions: Tensor) -> None:
    """Refuse a seed or positions of the wrong kind."""
    if seed.dtype is not torch.int64 or seed.dim() != 0 or positions.dtype is not torch.int64:
        raise ConfigError(
            f"a seed {tuple(seed.shape)} of {seed.dtype} and positions of {positions.dtype}",
            why="random numbers are computed from one 64-bit seed and 64-bit positions",
            do="write torch.tensor(1234) and torch.arange(...), which are int64",
        )


def dropout_backward(grad: Tensor, seed: Tensor, positions: Tensor, probability: float, stream: int) -> Tensor:
    """Dropout of the gradient, with the mask recomputed."""
    return fused_dropout.op(grad, seed, positions, probability, stream)


def _make_positions() -> Tensor:
    """Neighbours, and positions beyond 32 bits."""
    return torch.tensor([[0, 1, 2, 3, 4], [77, 2**31, 2**32, 2**40 + 5, 10**15]])


RANDOM_UNIFORM = custom_op(
    "random_uniform(Tensor seed, Tensor positions, int stream) -> Tensor",
    reference=reference_random_uniform,
    kernel=random_on_gpu.random_uniform,
    fake=lambda seed, positions, stream: positions.new_empty(positions.shape, dtype=torch.float32),
    examples=lambda: [(torch.tensor(7), positions, 11) for positions in (_make_positions(), _make_positions().t())],
    prebuild=True,
).op
fused_dropout = custom_op(
    "dropout(Tensor value, Tensor seed, Tensor positions, float probability, int stream) -> Tensor",
    reference=reference_dropout,
    kernel=random_on_gpu.dropout,
    fake=lambda value, seed, positions, probability, stream: value.new_empty(value.shape),
    backward=dropout_backward,
    save=("seed", "positions", "probability", "stream"),
    gradients=("value",),
    examples=lambda: [(example_tensor(2, 5), torch.tensor(7), _make_positions(), 0.3, 11)],
    prebuild=True,
)
DROPOUT = fused_dropout.op
