"""How kernels see values."""

from typing import NamedTuple

from torch import Tensor


def with_close_channels(value: Tensor) -> Tensor:
    """The value itself where the last dim is contiguous, else a contiguous copy."""
    return value if value.stride(-1) == 1 else value.contiguous()


def as_rows(value: Tensor) -> Tensor:
    """[rows, columns], the columns next to each other."""
    return with_close_channels(value.reshape(-1, value.shape[-1]))


def check_alike(*values: Tensor) -> None:
    """Refuse values that differ in shape: a kernel reads them at the same places, beyond the end of a smaller one."""
    is_alike = all(value.shape == values[0].shape for value in values)
    assert is_alike, f"a kernel reads values of one shape, not {[tuple(value.shape) for value in values]}"


class SpacedRows(NamedTuple):
    """Rows of a value where they lie: `inner` of them `step` apart, and as many again every `outer_step`."""

    values: Tensor
    rows: int
    inner: int
    outer_step: int
    step: int

    @property
    def place(self) -> tuple[int, int, int]:
        """What a kernel finds the rows by (`find_row`)."""
        return self.inner, self.outer_step, self.step


def find_spaced_rows(value: Tensor) -> SpacedRows:
    """The rows along the last dim. Heads that are a part of wider rows are not copied; what lies otherwise is."""
    value = with_close_channels(value)
    dims: list[tuple[int, int]] = []
    for size, step in zip(value.shape[:-1], value.stride()[:-1], strict=True):
        if dims and dims[-1][1] == size * step:
            dims[-1] = dims[-1][0] * size, step
        elif size != 1:
            dims.append((size, step))
    rows = value.numel() // max(1, value.shape[-1])
    if len(dims) == 2:
        return SpacedRows(value, rows, dims[1][0], dims[0][1], dims[1][1])
    if len(dims) < 2:
        return SpacedRows(value, rows, 1, dims[0][1] if dims else value.shape[-1], 0)
    return SpacedRows(value.contiguous(), rows, 1, value.shape[-1], 0)
