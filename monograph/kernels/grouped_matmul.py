"""One matmul for the rows of every expert, in any dtype and on any device: a loop over experts inside of one op.

torch's grouped kernel takes bf16 only. A loop over experts in a captured graph has an unbacked size and a dozen nodes
for every expert, and copies the sizes to the host. This op reads the sizes itself: one node, with shapes that do not
depend on the routing. On a GPU it synchronizes with the host.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


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


def reference_grouped_matmul(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """One matmul per expert that has rows."""
    found = rows.new_empty(rows.shape[0], weights.shape[2])
    for expert, part in find_parts(ends, rows.shape[0]):
        torch.mm(rows[part], weights[expert], out=found[part])
    return found


def reference_grouped_matmul_weight_grad(grad: Tensor, rows: Tensor, ends: Tensor) -> Tensor:
    """The weights' gradient, [experts, out, in]; zero for an expert without rows."""
    found = rows.new_zeros(ends.shape[0], grad.shape[1], rows.shape[1])
    for expert, part in find_parts(ends, rows.shape[0]):
        torch.mm(grad[part].t(), rows[part], out=found[expert])
    return found


def grouped_matmul_backward(grad: Tensor, rows: Tensor, weights: Tensor, ends: Tensor) -> tuple[Tensor, Tensor]:
    """Two more loops over the experts."""
    of_rows = GROUPED_MATMUL(grad, weights.transpose(1, 2), ends)
    # Stored weights are [experts, out, in], and transposed on the way here: their gradient is laid out like them.
    return of_rows, GROUPED_MATMUL_WEIGHT_GRAD(grad, rows, ends).transpose(1, 2)


def _make_examples() -> list[tuple[Tensor, Tensor, Tensor]]:
    """The second of three experts has no rows."""
    return [(example_tensor(5, 4), example_tensor(3, 4, 6, seed=1), torch.tensor([2, 2, 5]))]


GROUPED_MATMUL_WEIGHT_GRAD = custom_op(
    "grouped_matmul_weight_grad(Tensor grad, Tensor rows, Tensor ends) -> Tensor",
    reference=reference_grouped_matmul_weight_grad,
    fake=lambda grad, rows, ends: rows.new_empty(ends.shape[0], grad.shape[1], rows.shape[1]),
    examples=lambda: [(example_tensor(5, 6, seed=2), rows, ends) for rows, _, ends in _make_examples()],
).op
grouped_matmul = custom_op(
    "grouped_matmul(Tensor rows, Tensor weights, Tensor ends) -> Tensor",
    reference=reference_grouped_matmul,
    fake=lambda rows, weights, ends: rows.new_empty(rows.shape[0], weights.shape[2]),
    backward=grouped_matmul_backward,
    save=("rows", "weights", "ends"),
    gradients=("rows", "weights"),
    examples=_make_examples,
)
"""Each expert's rows [rows, in] times its weights [experts, in, out]; `ends` says where each expert's rows end."""
GROUPED_MATMUL = grouped_matmul.op
READS_HOST = (GROUPED_MATMUL, GROUPED_MATMUL_WEIGHT_GRAD)
"""Ops that wait for the device, to read sizes."""
