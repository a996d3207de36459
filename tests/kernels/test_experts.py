"""Matmuls of experts' rows on a GPU: what torch's grouped matmuls give one after the other, for every split of rows."""

import pytest
import torch

from monograph.compat.ops import grouped_mm
from monograph.kernels import experts_on_gpu
from monograph.kernels.experts import EXPERT_MATMUL, EXPERT_MATMUL_SUM, EXPERT_SWIGLU
from monograph.kernels.swiglu import SWIGLU

ROWS, DIM, HIDDEN = 20000, 512, 704
SPLITS = {
    "even": [2500] * 8,
    "uneven": [0, 13000, 1, 127, 128, 129, 6615, 0],
    "all to one": [0, 0, 0, 20000, 0, 0, 0, 0],
}


@pytest.mark.gpu
@pytest.mark.parametrize("split", SPLITS)
def test_kernels_give_what_torch_gives(split):
    torch.manual_seed(0)
    ends = torch.tensor(SPLITS[split], device="cuda").cumsum(0).to(torch.int32)

    def draw(*sizes):
        return torch.randn(*sizes, device="cuda", dtype=torch.bfloat16)

    x, hidden, other = draw(ROWS, DIM), draw(ROWS, HIDDEN), draw(ROWS, HIDDEN)
    gate, up, down = draw(8, HIDDEN, DIM) / DIM**0.5, draw(8, HIDDEN, DIM) / DIM**0.5, draw(8, DIM, HIDDEN)
    is_ours = torch.cuda.get_device_capability()[0] == 9
    assert experts_on_gpu.is_served(x, gate, up) == is_ours, "the kernels that are tested here"

    a, b = (grouped_mm(x, weight.transpose(1, 2), ends) for weight in (gate, up))
    for found, wanted in zip(EXPERT_SWIGLU(x, gate, up, ends), (a, b, SWIGLU(a, b)), strict=True):
        assert_close(found, wanted)
    assert_close(EXPERT_MATMUL(hidden, down, ends), grouped_mm(hidden, down.transpose(1, 2), ends))
    exact = torch.cat(
        [
            one.float() @ gate[expert].float() + two.float() @ up[expert].float()
            for expert, (one, two) in enumerate(
                zip(hidden.split(SPLITS[split]), other.split(SPLITS[split]), strict=True)
            )
        ]
    )
    apart = (EXPERT_MATMUL_SUM(hidden, gate, other, up, ends).float() - exact).abs().max() / exact.abs().max()
    assert float(apart) < 2**-8, "rounded once"


def assert_close(found, wanted):
    """At most one number in a thousand differs, because of another order of sums, and none by more than that gives."""
    apart = (found.float() - wanted.float()).abs() / wanted.float().abs().max()
    assert float((apart > 0).float().mean()) < 1e-3
    assert float(apart.max()) < 2**-7
