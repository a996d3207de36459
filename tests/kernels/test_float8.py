"""Casts to float8 and their matmuls against torch's own; the Triton kernels against the references, interpreted."""

import os
import subprocess
import sys

import numpy
import pytest
import torch

from monograph.compat.triton import HAS_TRITON
from monograph.kernels import float8_norm_on_gpu, float8_on_gpu, float8_swiglu_on_gpu, norm_on_gpu, swiglu_on_gpu
from monograph.kernels.catalog import CUSTOM_OPS
from monograph.kernels.float8 import (
    FLOAT8_CAST,
    FLOAT8_CAST_BOTH,
    FLOAT8_MATMUL,
    reference_float8_cast,
    reference_float8_cast_both,
)
from monograph.kernels.float8_amax import FLOAT8_CAST_AMAX, FLOAT8_CAST_TRANSPOSED, reference_float8_cast_amax
from monograph.kernels.float8_norm import FLOAT8_ADD_NORM, FLOAT8_NORM
from monograph.kernels.float8_shards import FLOAT8_AMAX, FLOAT8_CAST_KNOWN
from monograph.kernels.float8_swiglu import FLOAT8_SWIGLU, FLOAT8_SWIGLU_BACKWARD

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


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
def test_scales_are_divided_once_and_rounded_once(by_row):
    """`448 / amax` of torch multiplies by a reciprocal: in a quarter of all rows it is another number."""
    x = torch.randn(256, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    numbers, scales = FLOAT8_CAST(x, E4M3, by_row, False)
    amax = x.double().abs().amax(-1, keepdim=True) if by_row else x.double().abs().amax().view(1, 1)
    assert torch.equal(scales, (amax / 448).float())
    exact = (x.float() * (448 / amax).float()).clamp(-448, 448).to(E4M3)
    assert torch.equal(numbers.float(), exact.float())


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


def round_as_gpus_do() -> None:
    """Let Triton's interpreter round to nearest even: it truncates to bfloat16, rounds ties away from zero, and halves
    what should become the next power of two. For sm90 Triton emits cvt.rn.bf16.f32 and cvt.rn.satfinite.e4m3x2.f32."""
    from triton.runtime import interpreter

    plain = interpreter._convert_float
    narrow = {"bf16": torch.bfloat16, "fp8e4nv": E4M3, "fp8e5": E5M2}

    def convert(value, old, new, rounding):
        if str(old) != "fp32" or str(new) not in narrow:
            return plain(value, old, new, rounding)
        rounded = torch.from_numpy(value.copy()).to(narrow[str(new)])
        return rounded.view(torch.uint8 if rounded.itemsize == 1 else torch.uint16).numpy()

    interpreter._convert_float = convert
    # max.f32 and min.f32 return the other operand for what is not a number; numpy's maximum keeps that
    interpreter.InterpreterBuilder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, numpy.fmax)
    interpreter.InterpreterBuilder.create_minnumf = lambda self, a, b: self.binary_op(a, b, numpy.fmin)


def check_casts() -> None:
    """Kernels of one and of four steps a program have the bits of the references, in both dtypes."""
    round_as_gpus_do()
    draw = torch.Generator().manual_seed(0)
    values = [torch.randn(300, 150, generator=draw).bfloat16(), torch.randn(2, 40, 24, generator=draw)]
    for steps, dtype in ((1, E4M3), (4, E5M2)):
        float8_on_gpu.count_steps = lambda tiles, programs=0, steps=steps: steps
        for x in values:
            for by_row in (True, False):
                check(float8_on_gpu.float8_cast_both(x, dtype, by_row), reference_float8_cast_both(x, dtype, by_row))
                for flag in (True, False):
                    wanted = reference_float8_cast(x, dtype, by_row, flag)
                    check(float8_on_gpu.float8_cast(x, dtype, by_row, flag), wanted)
            *_, amax = found = float8_on_gpu.float8_cast_amax(x, dtype)
            check(found, reference_float8_cast_amax(x, dtype))
            check(float8_on_gpu.float8_cast_transposed(x, amax, dtype), reference_float8_cast(x, dtype, True, True))


def check_swiglu() -> None:
    """SwiGLU and its backward write what casts make of the same values in bfloat16; rows of any length and number."""
    round_as_gpus_do()
    draw = torch.Generator().manual_seed(0)
    for shape in ((2, 150, 80), (6, 3072)):
        compare_swiglu(torch.randn(3, *shape, generator=draw).bfloat16())


def compare_swiglu(values) -> None:
    """Of a gradient, a gate and an up projection, the last two as halves of one matmul."""
    grad, *halves = values.unbind()
    x, up = torch.cat(halves, -1).chunk(2, -1)
    gate = swiglu_on_gpu.swiglu(x, up).flatten(0, -2)
    check(float8_swiglu_on_gpu.float8_swiglu(x, up), float8_on_gpu.float8_cast(gate, E4M3, True, False))
    both, gate = (each.flatten(0, -2) for each in swiglu_on_gpu.swiglu_backward_packed_recompute(grad, x, up))
    casts = float8_on_gpu.float8_cast_both(both, E4M3, True), float8_on_gpu.float8_cast(gate, E4M3, True, True)
    check(float8_swiglu_on_gpu.float8_swiglu_backward(grad, x, up), (*casts[0], *casts[1]))


@pytest.mark.gpu
@pytest.mark.parametrize("rows, columns", [(70, 1), (128 * 65536, 16)])
def test_swiglu_writes_float8_of_one_column_and_of_more_rows_than_a_grid_is_high(rows, columns):
    compare_swiglu(torch.randn(3, rows, columns, device="cuda").bfloat16())


def check_norm() -> None:
    """A norm writes what a cast makes of it in bfloat16, and its backward computes the same values again."""
    round_as_gpus_do()
    draw = torch.Generator().manual_seed(0)
    for steps, columns in ((1, 80), (4, 3072)):
        float8_norm_on_gpu.count_steps = lambda tiles, steps=steps: steps
        x, other, grad = (torch.randn(2, 9, columns, generator=draw).bfloat16() for _ in range(3))
        weight = torch.randn(columns, generator=draw).bfloat16()
        total, out, rstd = norm_on_gpu.add_norm(x, other, weight, 1e-5)
        cast = float8_on_gpu.float8_cast_amax(out.flatten(0, 1), E4M3)
        check(float8_norm_on_gpu.float8_add_norm(x, other, weight, 1e-5), (total, *cast, rstd))
        check(float8_norm_on_gpu.float8_norm(total, weight, 1e-5), (*cast, rstd))
        *_, again = norm_on_gpu.norm_backward_recompute(grad, total, weight, rstd, None)
        assert torch.equal(again, out)


WITH_SCALES = (
    *(FLOAT8_CAST, FLOAT8_CAST_BOTH, FLOAT8_CAST_AMAX, FLOAT8_CAST_TRANSPOSED, FLOAT8_AMAX, FLOAT8_CAST_KNOWN),
    *(FLOAT8_SWIGLU, FLOAT8_SWIGLU_BACKWARD, FLOAT8_NORM, FLOAT8_ADD_NORM),
)


def check_nan(device="cpu") -> None:
    """One value that is no number makes what the reference makes of it: a scale that is none either."""
    if device == "cpu":
        round_as_gpus_do()
    for op in map(CUSTOM_OPS.__getitem__, WITH_SCALES):
        for x, *rest in op.examples():
            x = x.clone()
            x[..., 1, 2] = float("nan")
            if op.name in ("float8_cast_transposed", "float8_cast_known"):
                rest[0] = rest[0].clone()
                rest[0][..., -1] = float("nan")
            wanted = as_tuple(op.reference(x, *rest))
            assert any(each.isnan().any() for each in wanted if each.dtype is torch.float32)
            given = [each.to(device) if isinstance(each, torch.Tensor) else each for each in (x, *rest)]
            found = as_tuple(op.launcher(*given))
            if device == "cpu":
                check(found, wanted)
            for one, other in zip(found, wanted, strict=True):  # a CPU and a GPU round divisions in their own ways
                assert torch.equal(one.float().isnan().cpu(), other.float().isnan()), op.name


def as_tuple(results) -> tuple:
    return results if isinstance(results, tuple) else (results,)


def check(found, wanted) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one.float(), other.float().to(one.device), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", [CUSTOM_OPS[op] for op in WITH_SCALES], ids=lambda op: op.name)
def test_the_launcher_gives_no_rows_what_the_reference_gives_them(op):
    """Where nothing is launched a CPU can run it. A shard without numbers has the scale of the whole."""
    for args in op.examples():
        shape = args[0].shape
        args = [each[..., :0, :] if isinstance(each, torch.Tensor) and each.shape == shape else each for each in args]
        check(as_tuple(op.launcher(*args)), as_tuple(op.reference(*args)))


@pytest.mark.parametrize("op", [FLOAT8_CAST, FLOAT8_CAST_BOTH], ids=str)
def test_what_is_no_matrix_is_not_cast(op):
    own = CUSTOM_OPS[op]
    for function in (own.reference, own.launcher):
        with pytest.raises(AssertionError, match="a matrix, or a stack of them"):
            function(torch.ones(8), *own.examples()[0][1:])


@pytest.mark.gpu
def test_what_is_not_a_number_reaches_the_scales_of_every_cast_on_a_gpu():
    check_nan("cuda")


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed, as on machines without a GPU")
@pytest.mark.parametrize("name", ["check_casts", "check_swiglu", "check_norm", "check_nan"])
def test_the_interpreted_kernels_have_the_bits_of_their_references(name):
    """In a process of its own: Triton decides when it is imported whether it interprets kernels."""
    lines = f"from tests.kernels.test_float8 import {name}; {name}()"
    done = subprocess.run([sys.executable, "-c", lines], env=os.environ | {"TRITON_INTERPRET": "1"}, check=False)
    assert done.returncode == 0
