"""fp32 masters as bf16 weights and remainders: every bit comes back, and the weight is the nearest."""

import pytest
import torch

from monograph.kernels.param_remainders import combine_master, split_master


def test_every_master_comes_back_and_its_weight_is_nearest():
    bits = torch.randint(-(1 << 31), 1 << 31, (500_000,)).to(torch.int32)
    edges = torch.tensor([0, 0x7FFF, 0x8000, 0x8001, 0xFFFF, 0x18000, 0x3F808000, 0x3F818000], dtype=torch.int32)
    masters = torch.cat([edges.view(torch.float32), (-edges.view(torch.float32)), bits.view(torch.float32)])
    masters = masters[masters.abs() < 3e38]
    weight, rest = split_master(masters)
    assert weight.dtype is torch.bfloat16 and rest.dtype is torch.int16
    assert torch.equal(combine_master(weight, rest).view(torch.int32), masters.view(torch.int32))
    is_tie = (masters.view(torch.int32) & 0xFFFF) == 0x8000
    assert torch.equal(weight[~is_tie], masters[~is_tie].to(torch.bfloat16)) and is_tie.any()
    assert (weight[is_tie].float().abs() > masters[is_tie].abs()).all(), "ties go away from zero"


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, 0x7F800001, 0x7F80FFFF, -1, -0x400000, -0x7FFFFF])
def test_what_is_not_a_number_stays_none_whatever_its_bits(bits):
    """GPUs write 0x7FFFFFFF, CPUs 0x7FC00000 or 0xFFC00000; some of the others would be rounded to infinity."""
    master = torch.tensor([bits, 0x3F808000, 0x7F800000], dtype=torch.int32).view(torch.float32)
    assert master.isnan().tolist() == [True, False, False]
    weight, rest = split_master(master)
    assert weight.isnan().tolist() == [True, False, False]
    found = combine_master(weight, rest)
    assert found[0].isnan() and torch.equal(found[1:], master[1:])


def test_a_weight_without_a_remainder_is_its_own_master():
    weight = torch.randn(1000).to(torch.bfloat16)
    assert torch.equal(combine_master(weight, torch.zeros(1000, dtype=torch.int16)), weight.float())
