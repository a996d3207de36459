"""Heads of latent attention by our own ops, against torch's: values, gradients, and what fake tensors promise."""

from functools import partial

import pytest
import torch

from monograph.kernels.heads import (
    JOIN_HEADS,
    SPLIT_HEADS,
    join_keys,
    reference_join_heads,
    reference_split_heads,
    rope_tail,
)

CPU = torch.device("cpu")
GPU = pytest.param(torch.device("cuda"), marks=pytest.mark.gpu)
DTYPES = (torch.float32, torch.bfloat16)
SIZES = [(3, 12, 20, 9), (20, 128, 64, 128), (1, 1, 2, 1)]
"""Heads, own channels, turned channels, values: odd ones, more heads than are handled at a time, as few as can be."""


def close(found, expected):
    """Within rounding: a kernel computes in fp32 what torch rounds op by op."""
    close_enough = {"rtol": 2e-2, "atol": 4e-2} if expected.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found, expected, **close_enough)


def make_heads(device, dtype, heads, own, rope, values, *, angles=2):
    """Queries, keys with their values, a tail for all heads with gaps between its rows, angles."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((heads, own + rope), (heads, own + values), (1, rope + 3))
    q, kv, shared = (torch.randn(2, 5, *shape, generator=generator).to(device, dtype) for shape in shapes)
    cos, sin = torch.randn(2, angles, 5, 1, rope // 2, generator=generator).to(device).unbind()
    return q, kv, shared[..., 3:], cos, sin


def from_attention(*shape, device, dtype):
    """A gradient as attention hands it over: all of one head's places next to each other."""
    batch, seq_len, heads, dim = shape
    return torch.randn(batch, heads, seq_len, dim, device=device, dtype=dtype).transpose(1, 2)


def differentiate(function, *inputs, grads):
    """The results and the inputs' gradients."""
    leaves = [value.detach().requires_grad_() for value in inputs]
    results = function(*leaves)
    results = results if isinstance(results, tuple) else (results,)
    return *(result.detach() for result in results), *torch.autograd.grad(results, leaves, grads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_queries_are_turned_as_with_torchs_ops(device, interleaved, sizes, dtype):
    for angles in (1, 2):
        q, _, _, cos, sin = make_heads(device, dtype, *sizes, angles=angles)
        grads = (from_attention(*q.shape, device=device, dtype=dtype),)
        fused, plain = (
            differentiate(partial(rope_tail, rotation=(cos, sin), interleaved=interleaved, kernels=k), q, grads=grads)
            for k in ("fused", "plain")
        )
        for found, expected in zip(fused, plain, strict=True):
            assert found.is_contiguous()
            close(found, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("device", [CPU, GPU])
def test_keys_are_joined_as_with_torchs_ops(device, interleaved, sizes, dtype):
    for angles in (1, 2):
        q, kv, shared, cos, sin = make_heads(device, dtype, *sizes, angles=angles)
        values = kv[..., sizes[1] :]
        grads = tuple(from_attention(*value.shape, device=device, dtype=dtype) for value in (q, values))
        join = partial(join_keys, rotation=(cos, sin), values=sizes[3], interleaved=interleaved)
        fused, plain = (differentiate(partial(join, kernels=k), kv, shared, grads=grads) for k in ("fused", "plain"))
        for found, expected in zip(fused, plain, strict=True):
            close(found, expected)
        assert fused[1].data_ptr() == values.data_ptr(), "values are not copied"


@pytest.mark.parametrize("device", [CPU, GPU])
def test_ops_on_heads_take_any_strides_and_nothing(device):
    sizes = (3, 12, 20, 9)
    q, kv, shared, cos, sin = make_heads(device, torch.bfloat16, *sizes)
    apart = kv.transpose(1, 3).contiguous().transpose(1, 3)
    own = apart[..., :12]
    close(JOIN_HEADS(own, shared, cos, sin, True, True), reference_join_heads(own, shared, cos, sin, True, True))
    given = (q.transpose(2, 3).contiguous().transpose(2, 3), apart[..., 12:], cos, sin, False)
    for found, expected in zip(SPLIT_HEADS(*given), reference_split_heads(*given), strict=True):
        assert found.is_contiguous()
        close(found, expected)
    none = JOIN_HEADS(own[:0], shared[:0], cos[:0], sin[:0], True, False)
    assert none.shape == (0, 5, 3, 32)
    of_kv, of_shared = SPLIT_HEADS(q[:0], kv[:0, ..., 12:], cos[:0], sin[:0], True)
    assert of_kv.shape == (0, 5, 3, 21) and of_shared.shape == (0, 5, 1, 20)


def test_gradients_of_fused_heads_are_exact():
    q, kv, shared, cos, sin = (value.double() for value in make_heads(CPU, torch.float32, 2, 3, 4, 5))
    how = {"interleaved": True, "kernels": "fused"}

    def everything(q, kv, shared):
        k, v = join_keys(kv, shared, (cos, sin), values=5, **how)
        return rope_tail(q, (cos, sin), **how), k, v

    assert torch.autograd.gradcheck(everything, [value.requires_grad_() for value in (q, kv, shared)])


@pytest.mark.gpu
def test_gradients_of_the_shared_tail_have_the_same_bits_every_time():
    q, kv, _, cos, sin = make_heads(torch.device("cuda"), torch.bfloat16, 128, 128, 64, 128)
    first, again = (SPLIT_HEADS(q, kv[..., 128:], cos, sin, True) for _ in range(2))
    assert all(map(torch.equal, first, again))


def test_fake_tensors_promise_what_ops_on_heads_return():
    check = partial(torch.library.opcheck, test_utils=("test_schema", "test_faketensor"))
    for dtype in DTYPES:
        q, kv, shared, cos, sin = make_heads(CPU, dtype, 3, 12, 20, 9)
        check(JOIN_HEADS, (q[..., :12], q[..., 12:], cos, sin, True, True))
        check(JOIN_HEADS, (kv[..., :12], shared, cos, sin, False, False))
        check(SPLIT_HEADS, (q.transpose(1, 2).contiguous().transpose(1, 2), kv[..., 12:], cos, sin, True))
