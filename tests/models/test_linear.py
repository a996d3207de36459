"""Projections: one matmul, whatever the strides of their input."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from monograph.models.linear import Linear


class Recorded(TorchDispatchMode):
    """The names of the ops that run inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("has_gradient", [False, True])
@pytest.mark.parametrize("shape", [(2, 1, 6), (1, 3, 6), (1, 1, 6), (2, 3, 6), (5, 6)])
def test_rows_are_multiplied_at_once_even_with_odd_strides(shape, has_gradient):
    """With a stride that no view would give a dimension of size 1, torch itself multiplies batch by batch."""
    linear = Linear(6, 4, init_std=0.02)
    torch.nn.init.normal_(linear.weight)
    linear.weight.requires_grad_(has_gradient)
    plain = torch.randn(shape)
    strides = [7 if size == 1 else stride for size, stride in zip(shape, plain.stride(), strict=True)]
    with torch.no_grad(), Recorded() as seen:
        found = linear(plain.as_strided(shape, strides))
    assert seen.names.count("aten.mm.default") == 1
    assert "aten.bmm.default" not in seen.names
    assert torch.equal(found, (plain.reshape(-1, 6) @ linear.weight.T).view(*shape[:-1], 4))
