"""The gradient of an embedding added to a matrix that is there already: the head's gradient, where weights are tied.

As ops of torch's, a matrix of zeros as large as the vocabulary is filled and then added. This op reads and writes only
the rows of tokens that occur. The pass fuse_embedding_gradient puts it into graphs; a program adds in place where
nothing else reads the matrix (monograph/graph/pieces.py).
"""

import torch
from torch import Tensor

from monograph.kernels import embedding_rows_on_gpu
from monograph.kernels.custom_op import custom_op
from monograph.kernels.example_tensors import example_tensor


def reference_add_embedding_rows(base: Tensor, grad: Tensor, ids: Tensor) -> Tensor:
    """base [vocabulary, channels] plus, in row `ids[...]`, `grad[..., :]`; summed in fp32, rounded once."""
    wide = torch.promote_types(base.dtype, torch.float32)
    rows = grad.reshape(-1, grad.shape[-1]).to(wide)
    return base.to(wide).index_add(0, ids.reshape(-1), rows).to(base.dtype)


def add_embedding_rows_(base: Tensor, grad: Tensor, ids: Tensor) -> Tensor:
    """The same in place; the base."""
    if base.is_cuda:
        return embedding_rows_on_gpu.add_embedding_rows_(base, grad, ids)
    return base.copy_(reference_add_embedding_rows(base, grad, ids))


def _make_examples() -> list[tuple[Tensor, ...]]:
    """Ids that occur several times, and rows in between that none has."""
    ids = torch.tensor([[3, 0, 3, 9], [3, 1, 9, 3]])
    return [(example_tensor(10, 16), example_tensor(2, 4, 16, seed=1), ids)]


ADD_EMBEDDING_ROWS = custom_op(
    "add_embedding_rows(Tensor base, Tensor grad, Tensor ids) -> Tensor",
    reference=reference_add_embedding_rows,
    kernel=embedding_rows_on_gpu.add_embedding_rows,
    fake=lambda base, grad, ids: base.new_empty(base.shape),
    examples=_make_examples,
    decompose=True,
    prebuild=True,
).op
