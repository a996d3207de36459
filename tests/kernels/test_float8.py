"""Casts to float8 and their matmuls against torch's own; the Triton kernels against the references, interpreted."""

import os
import subprocess
import sys

import pytest
import torch

from monograph.compat.triton import HAS_TRITON
from monograph.kernels import float8_on_gpu
from monograph.kernels.float8 import (
    FLOAT8_CAST,
    FLOAT8_MATMUL,
    reference_float8_cast,
    reference_float8_cast_both,
)

E4M3 = torch.float8_e4m3fn


def test_fp32_is_rounded_to_bfloat16_first():
    x = torch.randn(33, 48, generator=torch.Generator().manual_seed(0))
    for by_row in (True, False):
        for is_transposed in (True, False):
            pairs = zip(
                FLOAT8_CAST(x, E4M3, by_row, is_transposed),
                FLOAT8_CAST(x.bfloat16(), E4M3, by_row, is_transposed),
                strict=True,
            )
            assert all(torch.equal(one.float(), other.float()) for one, other in pairs)


@pytest.mark.parametrize("by_row", [True, False])
def test_matmuls_are_those_of_torch(by_row):
    """torch's own kernel; scales of rows need torch 2.13 on a CPU."""
    x, w = (torch.randn(size, 64, generator=torch.Generator().manual_seed(size)).bfloat16() for size in (32, 48))
    (left, one), (right, other) = (FLOAT8_CAST(each, E4M3, by_row, False) for each in (x, w))
    found = FLOAT8_MATMUL(left, right, one, other, True)
    assert (found - x.float() @ w.float().t()).abs().max() < 0.06 * found.abs().max()
    try:
        wanted = torch._scaled_mm(left, right.t(), one, other.t(), out_dtype=torch.bfloat16)
    except RuntimeError as error:
        pytest.skip(str(error))
    torch.testing.assert_close(found, wanted, rtol=0.01, atol=0.01)


def check_casts() -> None:
    """Kernels of one and of four steps a program have the scales of the references, and the numbers."""
    draw = torch.Generator().manual_seed(0)
    values = [
        torch.randn(300, 150, generator=draw).bfloat16(),
        torch.randn(2, 40, 24, generator=draw).bfloat16().float(),
    ]
    for steps in (1, 4):
        float8_on_gpu._count_steps = lambda tiles, steps=steps: steps
        for x in values:
            for by_row in (True, False):
                check(float8_on_gpu.float8_cast_both(x, E4M3, by_row), reference_float8_cast_both(x, E4M3, by_row))
                for flag in (True, False):
                    wanted = reference_float8_cast(x, E4M3, by_row, flag)
                    check(float8_on_gpu.float8_cast(x, E4M3, by_row, flag), wanted)


def check(found, wanted) -> None:
    """All scales are equal. Of the numbers some are not: Triton's interpreter halves what it should round up to the
    next power of two (and truncates to bfloat16: values are rounded before). On a GPU check_op compares every bit."""
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        share = (one.float() == other.float()).float().mean().item()
        assert share == 1.0 if one.dtype is torch.float32 else share > 0.9, share


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed, as on machines without a GPU")
def test_the_interpreted_kernels_equal_their_references():
    """In a process of its own: Triton decides when it is imported whether it interprets kernels."""
    lines = "from tests.kernels.test_float8 import check_casts; check_casts()"
    done = subprocess.run([sys.executable, "-c", lines], env=os.environ | {"TRITON_INTERPRET": "1"}, check=False)
    assert done.returncode == 0
