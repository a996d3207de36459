"""Rotary positions: a rotation by position, in both layouts, stretched as published."""

import math

import pytest
import torch

from monograph.kernels.rope import apply_rope
from monograph.models.config import RopeConfig
from monograph.models.rope import compute_frequencies, compute_rotation_scale, compute_score_scale

INTERLEAVED = pytest.mark.parametrize("interleaved", [False, True])


def turn_with_complex_numbers(
    x: torch.Tensor, positions: torch.Tensor, theta: float, interleaved: bool
) -> torch.Tensor:
    """The definition: channels as complex numbers, times e^(i * position * frequency)."""
    dim = x.shape[-1]
    frequencies = torch.tensor([theta ** (-2 * i / dim) for i in range(dim // 2)], dtype=torch.float64)
    turn = torch.polar(torch.ones(()).double(), positions[..., None] * frequencies).unsqueeze(2)
    pairs = x.double().unflatten(-1, (-1, 2)) if interleaved else torch.stack(x.double().chunk(2, -1), -1)
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    return (turned.flatten(-2) if interleaved else torch.cat(turned.unbind(-1), -1)).to(x.dtype)


@INTERLEAVED
def test_channels_turn_by_position_times_frequency(interleaved):
    x = torch.randn(2, 10, 3, 8, generator=torch.Generator().manual_seed(0))
    rope = RopeConfig(max_seq_len=32, theta=100.0).build(dim=8)
    positions = torch.tensor([[*range(10)], [*range(5), *range(5)]])
    expected = turn_with_complex_numbers(x, positions, 100.0, interleaved)
    torch.testing.assert_close(apply_rope(x, rope(10, positions), interleaved=interleaved), expected, rtol=0, atol=1e-6)
    plain = apply_rope(x, rope(10), interleaved=interleaved)
    assert torch.equal(plain[0], apply_rope(x, rope(10, positions), interleaved=interleaved)[0])


@INTERLEAVED
def test_scores_depend_on_distance_only(interleaved):
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rope = RopeConfig(max_seq_len=64).build(dim=16)

    def score(at: int, other: int) -> float:
        turned_q = apply_rope(q, rope(1, torch.tensor([[at]])), interleaved=interleaved)
        turned_k = apply_rope(k, rope(1, torch.tensor([[other]])), interleaved=interleaved)
        return (turned_q * turned_k).sum().item()

    assert score(9, 4) == pytest.approx(score(29, 24), abs=1e-5)
    assert score(9, 4) != pytest.approx(score(9, 5), abs=1e-3)


def test_bf16_heads_are_turned_in_fp32():
    x = torch.randn(1, 40, 2, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    rope = RopeConfig(max_seq_len=64).build(dim=16)
    expected = apply_rope(x.float(), rope(40), interleaved=False).bfloat16()
    assert torch.equal(apply_rope(x, rope(40), interleaved=False), expected)


def test_llama3_scaling_leaves_short_waves_and_stretches_long_ones():
    config = RopeConfig(theta=500000.0, scaling="llama3", factor=8.0, original_max_seq_len=8192)
    plain, scaled = compute_frequencies(config.replace(scaling="none"), 128), compute_frequencies(config, 128)
    wavelengths = 2 * math.pi / plain
    short, long = wavelengths < 8192 / 4, wavelengths > 8192
    assert short.any() and long.any() and (~short & ~long).any()
    torch.testing.assert_close(scaled[short], plain[short], rtol=0, atol=0)
    torch.testing.assert_close(scaled[long], plain[long] / 8, rtol=1e-12, atol=0)
    between = scaled[~short & ~long] / plain[~short & ~long]
    assert ((between > 1 / 8) & (between < 1)).all() and (between.diff() < 0).all()


def test_yarn_stretches_slow_channels_only_and_sharpens_attention():
    config = RopeConfig(theta=10000.0, scaling="yarn", factor=40.0, original_max_seq_len=4096, mscale_all_dim=1.0)
    ratio = compute_frequencies(config, 64) / compute_frequencies(config.replace(scaling="none"), 64)
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(1 / 40) and (ratio.diff() <= 1e-12).all()
    assert compute_score_scale(config) == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    assert compute_rotation_scale(config) == 1
    assert compute_rotation_scale(config.replace(mscale_all_dim=0.0)) == pytest.approx(0.1 * math.log(40) + 1)
    assert compute_score_scale(config.replace(scaling="none")) == 1
