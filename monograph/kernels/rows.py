"""How kernels see values."""

from torch import Tensor


def with_close_channels(value: Tensor) -> Tensor:
    """The value itself where the last dim is contiguous, else a contiguous copy."""
    return value if value.stride(-1) == 1 else value.contiguous()


def as_rows(value: Tensor) -> Tensor:
    """[rows, columns], the columns next to each other."""
    return with_close_channels(value.reshape(-1, value.shape[-1]))
