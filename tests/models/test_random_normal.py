"""Numbers that depend on where they stand alone: what they are, how they are spread, and that nothing else matters."""

import hashlib
from statistics import NormalDist

import numpy as np
import pytest
import torch

from monograph.kernels.counter_random import signed
from monograph.models import random_normal as module
from monograph.models.random_normal import CUT, draw, to_fractions, to_normal


def drawn(rows, columns, *, seed=3, name="layers.0.w", width=None, std=0.02, **index):
    target = torch.empty(rows, columns)
    draw(target, seed, name, width=width or columns, std=std, **index)
    return target


def mixed_by_hand(index, seed, name):
    """SplitMix64 in Python's integers, with the second key between its rounds; its 25 highest bits, made odd."""
    keys = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    begin, twist = int.from_bytes(keys[:8], "big"), int.from_bytes(keys[8:16], "big")
    mask = 2**64 - 1
    z = (begin + index * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & mask) ^ twist
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
    high = z >> 39
    return (high - 2**25 if high >> 24 else high) | 1


def test_fractions_are_those_of_the_mixing_done_by_hand():
    begin, twist = module.find_counter_keys(5, "w")
    indices = [0, 1, 2, 77, 2**31 - 1, 2**32, 10**12]
    step = signed(0x9E3779B97F4A7C15)
    found = to_fractions(torch.tensor(indices) * step + begin, twist)
    assert (found * 2**24).tolist() == [mixed_by_hand(index, 5, "w") for index in indices]


def test_the_bits_stay_what_they_are():
    """Whoever changes them changes the start of every run; on purpose, and here."""
    bits = drawn(300, 300).numpy().tobytes()
    assert hashlib.sha256(bits).hexdigest()[:16] == "7420d42cf795d22a"


def test_values_are_the_quantiles_of_a_normal_distribution_cut_at_three():
    """Against the standard library's quantiles, over the whole range and close to its ends."""
    even = torch.linspace(-1, 1, 4001)[1:-1]
    ends = 1 - torch.logspace(-1, -7, 200)
    fractions = torch.cat([even, ends, -ends, torch.tensor([2.0**-24, 1 - 2.0**-24])])
    normal = NormalDist()
    share = 2 * normal.cdf(CUT) - 1
    for fraction, value in zip(fractions.double().tolist(), to_normal(fractions).double().tolist(), strict=True):
        assert value == pytest.approx(normal.inv_cdf((1 + share * fraction) / 2), rel=4e-6, abs=1e-12)
        assert abs(value) <= CUT


def test_values_are_spread_as_they_should_be():
    """A million of them: moments, the greatest distance from the distribution, and neighbours that know nothing."""
    values = drawn(1000, 1000, std=1.0).double()
    normal = NormalDist()
    share = 2 * normal.cdf(CUT) - 1
    std = (1 - 2 * CUT * normal.pdf(CUT) / share) ** 0.5
    assert abs(values.mean()) < 4e-3 and values.std().item() == pytest.approx(std, rel=3e-3)
    assert ((values / std) ** 3).mean().abs() < 0.01
    ordered = values.flatten().sort().values
    wanted = (torch.special.ndtr(ordered) - normal.cdf(-CUT)) / share
    distance = (wanted - torch.arange(len(ordered)) / len(ordered)).abs().max()
    assert distance < 1.95 / len(ordered) ** 0.5, "Kolmogorov and Smirnov: beyond this once in a thousand times"
    for a, b in ((values[1:], values[:-1]), (values[:, 1:], values[:, :-1]), (values, drawn(1000, 1000, name="v"))):
        assert np.corrcoef(a.flatten(), b.flatten())[0, 1] == pytest.approx(0, abs=4e-3)
    assert len(values.flatten().unique()) > 0.95 * values.numel()


@pytest.mark.parametrize("at_once", [1, 13, 1 << 17])
def test_a_part_is_cut_out_of_the_whole_however_much_is_drawn_at_once(at_once, monkeypatch):
    whole = drawn(40, 6)
    monkeypatch.setitem(module.AT_ONCE, "cpu", at_once)
    assert torch.equal(drawn(40, 6), whole)
    for row, stop in ((0, 1), (7, 9), (8, 32), (39, 40)):
        for column, end in ((0, 6), (2, 5), (5, 6)):
            part = drawn(stop - row, end - column, width=6, row=row, column=column)
            assert torch.equal(part, whole[row:stop, column:end])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_the_target_is_written_whatever_its_dtype_and_strides(dtype):
    whole = drawn(40, 6)
    wide = torch.full((40, 9), 7.0, dtype=dtype)
    draw(wide[:, 1:7], 3, "layers.0.w", width=6, std=0.02)
    assert torch.equal(wide[:, 1:7], whole.to(dtype))
    assert (wide[:, 0] == 7).all() and (wide[:, 7:] == 7).all()
    across = torch.empty(6, 40, dtype=dtype)
    draw(across.T, 3, "layers.0.w", width=6, std=0.02)
    assert torch.equal(across.T, whole.to(dtype))


def test_names_and_seeds_give_other_numbers_and_torchs_generators_do_not_matter():
    torch.manual_seed(0)
    first = drawn(50, 50)
    torch.manual_seed(1)
    assert torch.equal(drawn(50, 50), first)
    assert not any(
        torch.isin(drawn(50, 50, **other), first).float().mean() > 0.01 for other in ({"seed": 4}, {"name": "w"})
    )


def test_threads_do_not_matter():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = drawn(700, 700)
        torch.set_num_threads(2)
        assert torch.equal(drawn(700, 700), alone)
    finally:
        torch.set_num_threads(before)


def test_nothing_to_draw_is_no_error():
    for shape in ((0, 6), (6, 0)):
        assert drawn(*shape, width=6).shape == shape


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpu_draws_the_bits_of_a_cpu(dtype):
    """More than it draws at once, and every fraction that a value can be made of."""
    whole = drawn(3000, 2000)
    index = torch.empty(3000, 2100, dtype=dtype, device="cuda")
    draw(index[:, :2000], 3, "layers.0.w", width=2000, std=0.02)
    assert torch.equal(index[:, :2000].cpu(), whole.to(dtype))
    fractions = torch.arange(1 - 2**24, 2**24, 2).float() * 2.0**-24
    assert torch.equal(to_normal(fractions.cuda()).cpu(), to_normal(fractions))
