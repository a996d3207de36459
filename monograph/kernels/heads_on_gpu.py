"""The kernels of latent attention's heads, in Triton.

Inputs are read by their strides: heads are parts of wider matmuls, and a tail that all heads share has none between
them. In backward a program owns a token, so that no sum over heads crosses programs.
"""

from torch import Tensor

from monograph.compat.triton import tl, triton
from monograph.kernels.launch import launch
from monograph.kernels.rope_on_gpu import check_angles, turn_heads
from monograph.kernels.rows import with_close_channels
from monograph.kernels.tuning import Tunable

_CHANNELS = 2048
"""Of several heads of a token that are handled at a time."""
_JOIN = Tunable("join_heads", *({"num_warps": warps} for warps in (4, 2, 8)))


def count_together(heads: int, channels: int) -> int:
    """How many heads of so many channels are handled at a time."""
    return min(triton.next_power_of_2(heads), max(1, _CHANNELS // channels))


@triton.jit
def join_kernel(
    own,
    tail,
    cos,
    sin,
    out,
    seq_len,
    own_batch,
    own_place,
    own_head,
    tail_batch,
    tail_place,
    tail_head,
    angle_batch,
    heads: tl.constexpr,
    kept: tl.constexpr,
    half: tl.constexpr,
    channels: tl.constexpr,
    pairs: tl.constexpr,
    together: tl.constexpr,
    interleaved: tl.constexpr,
    inverse: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    batch, index = token // seq_len, token % seq_len
    head = (tl.program_id(1) * together + tl.arange(0, together)).to(tl.int64)[:, None]
    to = out + (token * heads + head) * (kept + 2 * half)
    channel = tl.arange(0, channels)[None, :]
    is_in = (head < heads) & (channel < kept)
    row = tl.load(own + batch * own_batch + index * own_place + head * own_head + channel, is_in)
    tl.store(to + channel, row, is_in)

    tail += batch * tail_batch + index * tail_place
    out += token * heads * (kept + 2 * half) + kept
    angle, width = batch * angle_batch + index * half, kept + 2 * half
    turn_heads(tail, cos, sin, out, head, heads, tail_head, width, angle, half, pairs, together, interleaved, inverse)


def join_heads(own: Tensor, tail: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, inverse: bool) -> Tensor:
    """Channels without position and a tail with RoPE, which may be one for all heads."""
    batch, seq_len, heads, kept = own.shape
    rope = tail.shape[-1]
    assert tail.shape[:2] == own.shape[:2] and tail.shape[2] in (1, heads), "heads of the same tokens"
    check_angles(own, cos, sin, rope // 2)
    out = own.new_empty(batch, seq_len, heads, kept + rope)
    if out.numel():
        own, tail = with_close_channels(own), with_close_channels(tail).expand(-1, -1, heads, -1)
        channels, pairs = triton.next_power_of_2(max(1, kept)), triton.next_power_of_2(rope // 2)
        together = count_together(heads, max(channels, 2 * pairs))
        launch(
            join_kernel,
            (batch * seq_len, triton.cdiv(heads, together)),
            own,
            tail,
            cos.contiguous(),
            sin.contiguous(),
            out,
            seq_len,
            *own.stride()[:3],
            *tail.stride()[:3],
            seq_len * (rope // 2) if cos.shape[0] > 1 else 0,
            heads=heads,
            kept=kept,
            half=rope // 2,
            channels=channels,
            pairs=pairs,
            together=together,
            interleaved=interleaved,
            inverse=inverse,
            **_JOIN.choose(*own.shape, rope, own.element_size()),
        )
    return out


@triton.jit
def split_kernel(
    keys,
    values,
    cos,
    sin,
    of_kv,
    of_shared,
    seq_len,
    keys_batch,
    keys_place,
    keys_head,
    values_batch,
    values_place,
    values_head,
    angle_batch,
    heads: tl.constexpr,
    kept: tl.constexpr,
    width: tl.constexpr,
    half: tl.constexpr,
    channels: tl.constexpr,
    pairs: tl.constexpr,
    together: tl.constexpr,
    interleaved: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    batch, index = token // seq_len, token % seq_len
    channel, pair = tl.arange(0, channels)[None, :], tl.arange(0, pairs)
    keys += batch * keys_batch + index * keys_place
    values += batch * values_batch + index * values_place
    firsts, seconds = tl.zeros([pairs], tl.float32), tl.zeros([pairs], tl.float32)
    for start in range(0, heads, together):
        head = (start + tl.arange(0, together)).to(tl.int64)[:, None]
        to = of_kv + (token * heads + head) * (kept + width) + channel
        is_own, is_value = (head < heads) & (channel < kept), (head < heads) & (channel < width)
        tl.store(to, tl.load(keys + head * keys_head + channel, is_own), is_own)
        tl.store(to + kept, tl.load(values + head * values_head + channel, is_value), is_value)
        tail = keys + head * keys_head + kept
        if interleaved:
            both = tl.arange(0, 2 * pairs)[None, :]
            row = tl.load(tail + both, (head < heads) & (both < 2 * half), 0.0).to(tl.float32)
            first, second = tl.split(tl.reshape(tl.sum(row, 0), (pairs, 2)))
            firsts += first
            seconds += second
        else:
            is_in = (head < heads) & (pair[None, :] < half)
            firsts += tl.sum(tl.load(tail + pair[None, :], is_in, 0.0).to(tl.float32), 0)
            seconds += tl.sum(tl.load(tail + pair[None, :] + half, is_in, 0.0).to(tl.float32), 0)

    angle = batch * angle_batch + index * half + pair
    c = tl.load(cos + angle, pair < half)
    s = tl.load(sin + angle, pair < half)
    to_first, to_second = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + half)
    of_shared += token * (2 * half)
    tl.store(of_shared + to_first, (firsts * c + seconds * s).to(of_shared.dtype.element_ty), pair < half)
    tl.store(of_shared + to_second, (seconds * c - firsts * s).to(of_shared.dtype.element_ty), pair < half)


def split_heads(
    grad_keys: Tensor, grad_values: Tensor, cos: Tensor, sin: Tensor, interleaved: bool
) -> tuple[Tensor, Tensor]:
    """The gradients of the matmul that keys and values are parts of, and of the tail that all heads share."""
    batch, seq_len, heads, dim = grad_keys.shape
    half, width = cos.shape[-1], grad_values.shape[-1]
    kept = dim - 2 * half
    assert grad_values.shape[:3] == grad_keys.shape[:3] and kept >= 0, "heads of the same tokens"
    check_angles(grad_keys, cos, sin, half)
    of_kv = grad_keys.new_empty(batch, seq_len, heads, kept + width)
    of_shared = grad_keys.new_empty(batch, seq_len, 1, 2 * half)
    if grad_keys.numel():
        keys, values = with_close_channels(grad_keys), with_close_channels(grad_values)
        channels = triton.next_power_of_2(max(1, kept, width))
        pairs = triton.next_power_of_2(half)
        launch(
            split_kernel,
            (batch * seq_len,),
            keys,
            values,
            cos.contiguous(),
            sin.contiguous(),
            of_kv,
            of_shared,
            seq_len,
            *keys.stride()[:3],
            *values.stride()[:3],
            seq_len * half if cos.shape[0] > 1 else 0,
            heads=heads,
            kept=kept,
            width=width,
            half=half,
            channels=channels,
            pairs=pairs,
            together=count_together(heads, max(channels, 2 * pairs)),
            interleaved=interleaved,
        )
    return of_kv, of_shared
