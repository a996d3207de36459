"""The kernels of rotations, in Triton."""

from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.rows import with_close_channels
from monograph.kernels.tuning import Tunable

_PAIRS = 1024
"""Largest number of channel pairs of one program."""
_ALONE = Tunable("rope", *({"num_warps": warps} for warps in (4, 2, 8)))
_PACKED = Tunable("rope_packed", *({"num_warps": warps} for warps in (2, 4, 8)))


@triton.jit
def turn_heads(
    x,
    cos,
    sin,
    out,
    head,
    heads,
    x_head,
    out_head,
    angle,
    half: tl.constexpr,
    pairs: tl.constexpr,
    together: tl.constexpr,
    interleaved: tl.constexpr,
    inverse: tl.constexpr,
):
    """Some heads of one token, from where `x` points to where `out` does."""
    pair = tl.arange(0, pairs)[None, :]
    c = tl.load(cos + angle + pair, pair < half)
    s = tl.load(sin + angle + pair, pair < half)
    if inverse:
        s = -s
    source = x + head * x_head
    to = out + head * out_head
    if interleaved:  # whole rows are read and written: neighbours that go apart would each fetch the same memory
        channel = tl.arange(0, 2 * pairs)[None, :]
        is_in = (head < heads) & (channel < 2 * half)
        row = tl.load(source + channel, is_in).to(tl.float32)
        first, second = tl.split(tl.reshape(row, (together, pairs, 2)))
        row = tl.interleave(first * c - second * s, second * c + first * s)
        tl.store(to + channel, row.to(out.dtype.element_ty), is_in)
    else:
        is_in = (head < heads) & (pair < half)
        first = tl.load(source + pair, is_in).to(tl.float32)
        second = tl.load(source + pair + half, is_in).to(tl.float32)
        tl.store(to + pair, (first * c - second * s).to(out.dtype.element_ty), is_in)
        tl.store(to + pair + half, (second * c + first * s).to(out.dtype.element_ty), is_in)


@triton.jit
def rope_kernel(
    x,
    cos,
    sin,
    out,
    seq_len,
    heads,
    x_batch,
    x_place,
    x_head,
    angle_batch,
    half: tl.constexpr,
    pairs: tl.constexpr,
    together: tl.constexpr,
    interleaved: tl.constexpr,
    inverse: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    batch, index = token // seq_len, token % seq_len
    head = (tl.program_id(1) * together + tl.arange(0, together)).to(tl.int64)[:, None]
    x += batch * x_batch + index * x_place
    out += token * heads * (2 * half)
    angle = batch * angle_batch + index * half
    turn_heads(x, cos, sin, out, head, heads, x_head, 2 * half, angle, half, pairs, together, interleaved, inverse)


@triton.jit
def rope_packed_kernel(
    q,
    k,
    v,
    cos,
    sin,
    out,
    seq_len,
    q_heads,
    k_heads,
    v_numbers,
    q_batch,
    q_place,
    q_head,
    k_batch,
    k_place,
    k_head,
    v_batch,
    v_place,
    v_head,
    v_dim,
    angle_batch,
    half: tl.constexpr,
    pairs: tl.constexpr,
    q_together: tl.constexpr,
    k_together: tl.constexpr,
    v_together: tl.constexpr,
    interleaved: tl.constexpr,
    inverse: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    batch, index = token // seq_len, token % seq_len
    angle = batch * angle_batch + index * half
    out += token * ((q_heads + k_heads) * (2 * half) + v_numbers)
    q += batch * q_batch + index * q_place
    k += batch * k_batch + index * k_place
    v += batch * v_batch + index * v_place
    head = tl.arange(0, q_together).to(tl.int64)[:, None]
    turn_heads(q, cos, sin, out, head, q_heads, q_head, 2 * half, angle, half, pairs, q_together, interleaved, inverse)
    out += q_heads * (2 * half)
    head = tl.arange(0, k_together).to(tl.int64)[:, None]
    turn_heads(k, cos, sin, out, head, k_heads, k_head, 2 * half, angle, half, pairs, k_together, interleaved, inverse)
    out += k_heads * (2 * half)
    number = tl.arange(0, v_together).to(tl.int64)
    value = tl.load(v + (number // v_dim) * v_head + number % v_dim, number < v_numbers)
    tl.store(out + number, value, number < v_numbers)


def check_angles(x: Tensor, cos: Tensor, sin: Tensor, half: int) -> None:
    """Refuse angles that are not [batch or 1, sequence, 1, pairs of channels]."""
    batch, seq_len = x.shape[:2]
    is_one = cos.shape == sin.shape and cos.shape[0] in (1, batch) and tuple(cos.shape[1:]) == (seq_len, 1, half)
    assert is_one, f"angles {tuple(cos.shape)} and {tuple(sin.shape)} for {half} pairs of {tuple(x.shape)}"


_AS_OPS = {"enable_fp_fusion": False}
"""Every product and sum is rounded: alone or with others beside it, a rotation has the same bits."""


def rope(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """Rotate the pairs of channels of x [batch, sequence, heads, dim]."""
    check_angles(x, cos, sin, x.shape[-1] // 2)
    out = x.new_empty(x.shape)
    if not out.numel():
        return out
    x = with_close_channels(x)
    cos, sin = cos.contiguous(), sin.contiguous()
    batch, seq_len, heads, dim = x.shape
    half = dim // 2
    pairs = triton.next_power_of_2(half)
    together = min(triton.next_power_of_2(heads), max(1, _PAIRS // pairs))
    launch(
        rope_kernel,
        (batch * seq_len, triton.cdiv(heads, together)),
        x,
        cos,
        sin,
        out,
        seq_len,
        heads,
        *x.stride()[:3],
        seq_len * half if cos.shape[0] > 1 else 0,
        half=half,
        pairs=pairs,
        together=together,
        interleaved=interleaved,
        inverse=inverse,
        **_ALONE.choose(*x.shape, x.element_size()),
        **_AS_OPS,
    )
    return out


def rope_packed(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """Turn q and k, and put them beside v."""
    batch, seq_len, q_heads, dim = q.shape
    k_heads, (v_heads, v_dim), half = k.shape[2], v.shape[2:], dim // 2
    assert k.shape[:2] == v.shape[:2] == q.shape[:2] and k.shape[3] == dim, "heads of the same tokens"
    check_angles(q, cos, sin, half)
    out = q.new_empty(batch, seq_len, (q_heads + k_heads) * dim + v_heads * v_dim)
    if not out.numel():
        return out
    q, k, v = (with_close_channels(x) for x in (q, k, v))
    cos, sin = cos.contiguous(), sin.contiguous()
    launch(
        rope_packed_kernel,
        (batch * seq_len,),
        q,
        k,
        v,
        cos,
        sin,
        out,
        seq_len,
        q_heads,
        k_heads,
        v_heads * v_dim,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        v_dim,
        seq_len * half if cos.shape[0] > 1 else 0,
        half=half,
        pairs=triton.next_power_of_2(half),
        q_together=triton.next_power_of_2(q_heads),
        k_together=triton.next_power_of_2(k_heads),
        v_together=triton.next_power_of_2(v_heads * v_dim),
        interleaved=interleaved,
        inverse=inverse,
        **_PACKED.choose(*q.shape, k_heads, v_heads, v_dim, q.element_size()),
        **_AS_OPS,
    )
    return out
