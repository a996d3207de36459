"""Random numbers by seed and position, and dropout: the same in eager mode and in a graph, on a CPU and on a GPU.

torch's generators have a state that every call moves on: recomputed, chunked or sharded, a step would draw other
numbers, so graphs refuse them. Here a number depends on the seed, the name of its stream and its position alone. The
seed is an input of the step (`Model.draws_random`), and positions follow from the data (`token_index` of a batch).
"""

import torch
from torch import Tensor

from monograph.errors import ConfigError
from monograph.kernels import random_on_gpu
from monograph.kernels.counter_random import reference_dropout, reference_random_uniform, stream_of
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


def random_uniform(seed: Tensor, starts: Tensor, width: int, stream: str) -> Tensor:
    """Numbers in [0, 1), evenly spread, in fp32: rows of this width, one for every entry of `starts`.

    Args:
        seed: one int64 number, on the device of `starts`.
        starts: int64, of any shape: the position of each row's first element in the whole tensor, not in this rank's
            part of it. The others follow it.
        width: how many numbers a row has.
        stream: what the numbers are for, such as a module's path; other streams are independent.
    """
    check_random_inputs(seed, starts)
    numbers: Tensor = RANDOM_UNIFORM(seed + stream_of(stream), starts, width)
    return numbers


def dropout(value: Tensor, key: Tensor, starts: Tensor, probability: float) -> Tensor:
    """Set each element to zero with this probability and divide the others by what is left of one.

    `key` is the seed plus the number of a stream, `starts` the position of the first element of each row of `value`.
    Backward does the same to the gradient, from the same numbers: nothing is saved but key and positions.
    """
    check_random_inputs(key, starts)
    if not 0.0 <= probability < 1.0:
        raise ConfigError(f"dropout probability must be >= 0 and < 1, got {probability}")
    if value.shape[:-1] != starts.shape:
        raise ConfigError(
            f"dropout of a value {tuple(value.shape)} with positions {tuple(starts.shape)}",
            why="every row of the value has the position of its first element",
            do="pass positions of the value's shape without its last dim",
        )
    result: Tensor = fused_dropout(value, key, starts, probability)
    return result


def check_random_inputs(seed: Tensor, starts: Tensor) -> None:
    """Refuse a seed or positions of the wrong kind."""
    if seed.dtype is not torch.int64 or seed.dim() != 0 or starts.dtype is not torch.int64:
        raise ConfigError(
            f"a seed {tuple(seed.shape)} of {seed.dtype} and positions of {starts.dtype}",
            why="random numbers are computed from one 64-bit seed and 64-bit positions",
            do="write torch.tensor(1234) and torch.arange(...), which are int64",
        )


def dropout_backward(grad: Tensor, key: Tensor, starts: Tensor, probability: float) -> Tensor:
    """Dropout of the gradient, with the mask recomputed."""
    result: Tensor = DROPOUT(grad, key, starts, probability)
    return result


def _make_starts() -> Tensor:
    """Rows that follow each other, and positions beyond 32 bits."""
    return torch.tensor([[0, 5], [2**31 - 2, 10**15]])


RANDOM_UNIFORM = custom_op(
    "random_uniform(Tensor key, Tensor starts, int width) -> Tensor",
    reference=reference_random_uniform,
    kernel=random_on_gpu.random_uniform,
    fake=lambda key, starts, width: starts.new_empty((*starts.shape, width), dtype=torch.float32),
    examples=lambda: [(torch.tensor(7), starts, 5) for starts in (_make_starts(), _make_starts().t())],
    prebuild=True,
).op
fused_dropout = custom_op(
    "dropout(Tensor value, Tensor key, Tensor starts, float probability) -> Tensor",
    reference=reference_dropout,
    kernel=random_on_gpu.dropout,
    fake=lambda value, key, starts, probability: value.new_empty(value.shape),
    backward=dropout_backward,
    save=("key", "starts", "probability"),
    gradients=("value",),
    examples=lambda: [(example_tensor(2, 2, 5), torch.tensor(7), _make_starts(), 0.3)],
    prebuild=True,
)
DROPOUT = fused_dropout.op
