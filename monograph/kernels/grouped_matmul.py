"""One matmul for the rows of every expert, in any dtype and on any device: a loop over experts inside of one op.

torch's grouped kernel takes bf16 only. A loop over experts in a captured graph has an unbacked size and a dozen nodes
for every expert, and copies the sizes to the host. This op reads the sizes itself: one node, with shapes that do not
depend on the routing. On a GPU it synchronizes with the host.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

_LIBRARY = torch.library.Library("monograph", "FRAGMENT")
_LIBRARY.define("grouped_matmul(Tensor rows, Tensor weights, Tensor ends) -> Tensor")
_LIBRARY.define("grouped_matmul_weight_grad(Tensor grad, Tensor rows, Tensor ends) -> Tensor")


def grouped_matmul(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Each expert's rows [rows, in] times its weights [experts, in, out]; `ends` says where each expert's rows end."""
    return GroupedMatmul.apply(rows, weights, ends)


class GroupedMatmul(Function):
    """Gradients are two more loops over the experts."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
        ctx.save_for_backward(rows, weights, ends)
        return GROUPED_MATMUL(rows, weights, ends)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        rows, weights, ends = ctx.saved_tensors
        of_rows = GROUPED_MATMUL(grad, weights.transpose(1, 2), ends)
        # Stored weights are [experts, out, in], and transposed on the way here: their gradient is laid out like them.
        return of_rows, GROUPED_MATMUL_WEIGHT_GRAD(grad, rows, ends).transpose(1, 2), None


def find_parts(ends: Tensor, count: int) -> Iterator[tuple[int, slice]]:
    """The experts that have rows, and which; rows must be all there."""
    start = 0
    bounds = ends.tolist()
    if not bounds or bounds[-1] != count:
        raise ValueError(f"experts' rows end at {bounds[-1:]}, and there are {count}")
    for expert, end in enumerate(bounds):
        if not start <= end <= count:
            raise ValueError(f"experts' rows end at {bounds}, which is not in order")
        if end > start:
            yield expert, slice(start, end)
        start = end


@torch.library.impl(_LIBRARY, "grouped_matmul", "CompositeExplicitAutograd")
def _grouped_matmul(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    found = rows.new_empty(rows.shape[0], weights.shape[2])
    for expert, part in find_parts(ends, rows.shape[0]):
        torch.mm(rows[part], weights[expert], out=found[part])
    return found


@torch.library.impl(_LIBRARY, "grouped_matmul_weight_grad", "CompositeExplicitAutograd")
def _grouped_matmul_weight_grad(grad: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
    found = rows.new_zeros(ends.shape[0], grad.shape[1], rows.shape[1])
    for expert, part in find_parts(ends, rows.shape[0]):
        torch.mm(grad[part].t(), rows[part], out=found[expert])
    return found


@torch.library.register_fake("monograph::grouped_matmul", lib=_LIBRARY)
def _grouped_matmul_shape(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weights.shape[2])


@torch.library.register_fake("monograph::grouped_matmul_weight_grad", lib=_LIBRARY)
def _grouped_matmul_weight_grad_shape(grad: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(ends.shape[0], grad.shape[1], rows.shape[1])


GROUPED_MATMUL = torch.ops.monograph.grouped_matmul.default
GROUPED_MATMUL_WEIGHT_GRAD = torch.ops.monograph.grouped_matmul_weight_grad.default
READS_HOST = (GROUPED_MATMUL, GROUPED_MATMUL_WEIGHT_GRAD)
"""Ops that wait for the device, to read sizes."""
