"""Whether two values are the same, and how they are not."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ValueDifference:
    """Two tensors that should be the same."""

    relative: float
    """The largest difference over the largest value; infinite where one is finite and the other is not."""
    index: tuple[int, ...]
    """Where the largest difference is."""
    left: float
    right: float
    count: int
    """How many elements differ."""
    of: int
    shapes: str = ""
    """Both, with their dtypes, where one of these is not the same."""

    def __str__(self) -> str:
        if not self.of:
            return self.shapes
        where = f" at {list(self.index)}" if self.index else ""
        return (
            f"{self.left!r} and {self.right!r}{where}: {self.count:,} of {self.of:,} elements differ, "
            f"by at most {self.relative:.1e} of the largest" + (f" ({self.shapes})" if self.shapes else "")
        )


def find_difference(left: Tensor, right: Tensor, tolerance: float = 0.0) -> ValueDifference | None:
    """How two tensors differ; None where they are equal: bit for bit without a tolerance, NaN equal to NaN.

    Numbers of different dtypes are compared as numbers: a gradient that was not widened has lost nothing.
    """
    shapes = _describe_shapes(left, right)
    if left.shape != right.shape or left.is_floating_point() != right.is_floating_point():
        return ValueDifference(math.inf, (), math.nan, math.nan, 0, 0, shapes)
    if not left.numel() or (not shapes and torch.equal(left, right)):
        return None
    wide = [value.to(torch.float64) for value in (left, right)]
    is_other = ~((wide[0] == wide[1]) | (wide[0].isnan() & wide[1].isnan()))
    count = int(is_other.sum())
    if not count:
        return None
    gaps = torch.where(is_other, (wide[0] - wide[1]).abs(), 0.0).nan_to_num(nan=math.inf, posinf=math.inf)
    flat = int(gaps.argmax())
    largest = float(wide[1][wide[1].isfinite()].abs().max()) if bool(wide[1].isfinite().any()) else 0.0
    relative = float(gaps.flatten()[flat]) / largest if largest else math.inf
    if relative <= tolerance:
        return None
    index = tuple(int(each) for each in torch.unravel_index(torch.tensor(flat), left.shape))
    return ValueDifference(
        relative, index, left.flatten()[flat].item(), right.flatten()[flat].item(), count, left.numel(), shapes
    )


def _describe_shapes(left: Tensor, right: Tensor) -> str:
    """Both dtypes and shapes, where they are not the same."""
    if left.shape == right.shape and left.dtype == right.dtype:
        return ""
    return " and ".join(f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}" for each in (left, right))


def find_missing(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> dict[str, ValueDifference]:
    """What one side alone has, such as the gradient of a parameter that the other one freezes."""
    sides = {**dict.fromkeys(left, "A"), **dict.fromkeys(right, "B")}
    return {
        name: ValueDifference(math.inf, (), math.nan, math.nan, 0, 0, f"only {side} has it")
        for name, side in sides.items()
        if (name in left) != (name in right)
    }


def find_differences(
    left: Mapping[str, Tensor], right: Mapping[str, Tensor], tolerance: float = 0.0
) -> dict[str, ValueDifference]:
    """Of all values that both have, those that differ, in the order of the left."""
    found = {name: find_difference(left[name], right[name], tolerance) for name in left if name in right}
    return {name: each for name, each in found.items() if each is not None}
