"""The matmuls of experts with float8 operands on a GPU: torch's kernel."""

from torch import Tensor

from monograph.compat.float8 import scaled_grouped_mm


def float8_grouped_matmul(
    rows: Tensor, weights: Tensor, row_scale: Tensor, weight_scale: Tensor, ends: Tensor
) -> Tensor:
    """Each expert's rows times its weights transposed, in bfloat16."""
    return scaled_grouped_mm(rows, weights, row_scale, weight_scale, ends)
