"""Rows of an embedding's gradient added to a matrix: torch's gradient and a sum, whichever ids occur how often."""

import pytest
import torch

from monograph.kernels import embedding_rows_on_gpu
from monograph.kernels.embedding_rows import ADD_EMBEDDING_ROWS, add_embedding_rows_

VOCABULARY, CHANNELS = 1000, 200
BLOCK = embedding_rows_on_gpu.POSITIONS
IDS = {
    "one": [7],
    "all different": list(range(5 * BLOCK)),
    "all equal": [999] * (40 * BLOCK + 3),
    "few": [(17 * place) % 5 for place in range(11 * BLOCK + 1)],
    "whole blocks": [1] * BLOCK + [2] * BLOCK + [3] * (2 * BLOCK),
    "across blocks": [1] * (BLOCK - 1) + [2] * (BLOCK + 2) + list(range(3, 70)) + [70] * (3 * BLOCK),
}
"""Kind of ids -> how often each occurs, and where its positions lie once they are sorted."""


def make(kind, device="cpu", dtype=torch.float32, grad_dtype=torch.float32):
    """A matrix, gradients and ids in some order, among which every kind has all of its own."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.tensor(IDS[kind])
    ids = ids[torch.randperm(len(ids), generator=draw)]
    base = torch.randn(VOCABULARY, CHANNELS, generator=draw)
    grad = torch.randn(len(ids), CHANNELS, generator=draw)
    return base.to(device, dtype), grad.to(device, grad_dtype), ids.to(device)


def add_exactly(base, grad, ids):
    """What torch gives in fp64."""
    rows = torch.ops.aten.embedding_dense_backward(grad.double(), ids, base.shape[0], -1, False)
    return base.double() + rows


@pytest.mark.parametrize("kind", ["few", "all different"])
def test_it_is_torchs_gradient_and_a_sum(kind):
    base, grad, ids = make(kind)
    found = ADD_EMBEDDING_ROWS(base, grad, ids)
    torch.testing.assert_close(found.double(), add_exactly(base, grad, ids), rtol=1e-5, atol=1e-5)
    assert add_embedding_rows_(base, grad, ids) is base and torch.equal(base, found)


def test_a_narrow_sum_is_rounded_once():
    base, grad, ids = make("few", dtype=torch.bfloat16, grad_dtype=torch.bfloat16)
    exact = add_exactly(base, grad, ids)
    assert torch.equal(ADD_EMBEDDING_ROWS(base, grad, ids), exact.float().bfloat16())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", IDS)
@pytest.mark.parametrize("dtypes", [("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("float32", "float32")], ids=str)
def test_a_kernel_adds_what_torch_adds_with_the_same_bits_every_time(kind, dtypes):
    base, grad, ids = make(kind, "cuda", *(getattr(torch, name) for name in dtypes))
    before, exact = base.clone(), add_exactly(base, grad, ids)
    found = ADD_EMBEDDING_ROWS(base, grad, ids)
    assert torch.equal(base, before), "nothing is written over"
    rounding = 2**-8 if dtypes[0] == "bfloat16" else 2**-20
    assert float((found.double() - exact).norm() / exact.norm()) < rounding
    others = torch.ones(VOCABULARY, dtype=torch.bool, device="cuda")
    others[ids] = False
    assert torch.equal(found[others], base[others]), "rows of other ids stay as they are"
    for _ in range(5):
        assert torch.equal(ADD_EMBEDDING_ROWS(base, grad, ids), found)
    assert add_embedding_rows_(base, grad, ids) is base and torch.equal(base, found)


@pytest.mark.gpu
@pytest.mark.parametrize("above, below", [(VOCABULARY, -1), (2**32 + 3, -(2**32) + 1), (2**31, -(2**31) - 1)])
def test_a_kernel_leaves_out_ids_that_the_matrix_does_not_have(above, below):
    base, grad, ids = make("few", "cuda")
    ids[::3], ids[1::3] = above, below
    kept = (ids >= 0) & (ids < VOCABULARY)
    exact = add_exactly(base, grad[kept], ids[kept])
    torch.testing.assert_close(ADD_EMBEDDING_ROWS(base, grad, ids).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.gpu
def test_it_replays_in_a_cuda_graph_with_other_ids():
    base, grad, ids = make("few", "cuda")
    _, _, others = make("across blocks", "cuda")
    others = others.repeat(3)[: len(ids)]
    assert len(others) == len(ids)
    ADD_EMBEDDING_ROWS(base, grad, ids)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ADD_EMBEDDING_ROWS(base, grad, ids)
    ids.copy_(others)
    graph.replay()
    assert torch.equal(found, ADD_EMBEDDING_ROWS(base, grad, others))
