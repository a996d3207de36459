"""Rounding to bf16 by chance: unbiased, to a neighbour, the same bits for the same key and position."""

import math

import pytest
import torch

from monograph.kernels.stochastic_rounding import draw_rounding_bits, reference_stochastic_round

COUNT = 200_000


def draw(key, *, count=COUNT, first=0):
    return draw_rounding_bits(torch.tensor(key), torch.tensor([first]), count)


@pytest.mark.parametrize("value", [1.0 + 2**-9, 1.0 + 2**-12, -3.1415927, 1e-30, 6.0e-39, 65504.7])
def test_every_result_is_a_neighbour_and_their_mean_is_the_value(value):
    whole = torch.full((COUNT,), value)
    rounded = reference_stochastic_round(whole, draw(1)[0]).double()
    found = rounded.unique()
    assert len(found) == 2 and found[0] < value < found[1]
    step = (found[1] - found[0]).item()
    assert step <= 2 * abs(torch.tensor(value).to(torch.bfloat16).item()) * 2**-7
    assert abs(rounded.mean() - whole[0].double()) < 5 * step / 2 / math.sqrt(COUNT)


def test_what_bf16_has_stays_and_what_is_no_number_stays_none():
    exact = torch.randn(1000).to(torch.bfloat16).float()
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, 1.0, 2.0**-130])
    bits = torch.full((1000,), 0xFFFF)
    assert torch.equal(reference_stochastic_round(exact, bits), exact.to(torch.bfloat16))
    assert torch.equal(reference_stochastic_round(special, bits[:6]).float(), special)
    nans = torch.tensor([0x7FFFFFFF, -1, 0x7F800001], dtype=torch.int32).view(torch.float32)
    assert reference_stochastic_round(nans, bits[:3]).isnan().all()


def test_bits_depend_on_key_and_position_alone():
    first, second = draw(1)
    assert all(map(torch.equal, draw(1, count=100, first=500), (first[500:600], second[500:600])))
    rows = draw_rounding_bits(torch.tensor(1), torch.tensor([40, 10, 7]), 9)[0]
    assert torch.equal(rows, torch.cat([first[start : start + 3] for start in (40, 10, 7)]))
    assert (draw(2)[0] == first).float().mean() < 0.001, "another key, other bits"


def test_bits_are_even_and_those_of_both_moments_of_neighbours_and_of_updates_independent():
    first, second = draw(1)
    for bits in (first, second):
        assert bits.min() >= 0 and bits.max() <= 0xFFFF
        counts = bits.bincount(minlength=1 << 16).view(256, -1).sum(1).double()
        assert ((counts - COUNT / 256) ** 2 / (COUNT / 256)).sum() < 400, "chi-square of 255 degrees of freedom"
    pairs = [(first, second), (first[1:], first[:-1]), (first, draw(2)[0]), (second, draw(2)[0])]
    for one, other in pairs:
        correlation = torch.corrcoef(torch.stack([one, other]).double())[0, 1]
        assert abs(correlation) < 5 / math.sqrt(COUNT)
