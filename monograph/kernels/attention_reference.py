"""Attention and its gradients in torch's ops: segment by segment on a CPU, dense for what no GPU kernel serves."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from monograph.compat.attention import cpu_attention, cpu_attention_backward
from monograph.errors import ConfigError
from monograph.kernels.attention_segments import Segment, build_mask, mask_positions, read_segments


def lse_dtype(q: Tensor) -> torch.dtype:
    """The dtype of what sums over scores are kept in."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def attend_on_cpu(
    q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None, *, scale: float, causal: bool, window: int, cap: float
) -> tuple[Tensor, Tensor]:
    """Output [batch, queries, heads, value channels] and lse [batch, heads, queries], without sinks."""
    if cap:  # torch's kernel for CPUs has no cap
        return attend_densely(q, k, v, segments, scale=scale, causal=causal, window=window, cap=cap)
    width = v.shape[-1]
    q, k, v = pad_channels(q, k, v)
    if is_one_rule(q, k, segments, causal=causal, window=window):
        out, lse = cpu_attention(q, k, v, scale=scale, causal=causal)
        return out[..., :width], lse
    out = q.new_zeros((*q.shape[:3], width))
    lse = q.new_full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"), dtype=lse_dtype(q))
    for part in find_parts(q, k, segments, causal=causal):
        of_q, of_k, of_v = take(q, part.queries, part), take(k, part.keys, part), take(v, part.keys, part)
        rule = choose_rule(of_q, of_k, causal=causal, window=window)
        found, sums = cpu_attention(of_q, of_k, of_v, scale=scale, **rule)
        out[part.sequence, part.queries] = found[0, ..., :width]
        lse[part.sequence, :, part.queries] = sums[0]
    return out, lse


def attend_backward_on_cpu(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool,
    window: int,
    cap: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v; `out` and `lse` are those of the forward, sinks included."""
    if cap:
        rule: dict[str, Any] = {"scale": scale, "causal": causal, "window": window, "cap": cap}
        return attend_backward_densely(grad, q, k, v, segments, out, lse, **rule)
    widths = q.shape[-1], k.shape[-1], v.shape[-1]
    q, k, v, grad, out = pad_channels(q, k, v, grad, out)
    if is_one_rule(q, k, segments, causal=causal, window=window):
        found = cpu_attention_backward(grad, q, k, v, out, lse, scale=scale, causal=causal)
    else:
        found = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for part in find_parts(q, k, segments, causal=causal):
            of_q, of_k, of_v = take(q, part.queries, part), take(k, part.keys, part), take(v, part.keys, part)
            results = take(out, part.queries, part), lse[part.sequence : part.sequence + 1, :, part.queries]
            rule = choose_rule(of_q, of_k, causal=causal, window=window)
            before = take(grad, part.queries, part)
            gradients = cpu_attention_backward(before, of_q, of_k, of_v, *results, scale=scale, **rule)
            for whole, where, value in zip(found, (part.queries, part.keys, part.keys), gradients, strict=True):
                whole[part.sequence, where] = value[0]
    of_q, of_k, of_v = (each[..., :width] for each, width in zip(found, widths, strict=True))
    return of_q, of_k, of_v


def is_one_rule(q: Tensor, k: Tensor, segments: Tensor | None, *, causal: bool, window: int) -> bool:
    """Whether torch's kernel is told by a flag what all queries of a batch see. It crashes where there are no keys."""
    is_whole = segments is None and not window and k.shape[1] > 0
    return is_whole and (not causal or q.shape[1] == k.shape[1])


def find_parts(q: Tensor, k: Tensor, segments: Tensor | None, *, causal: bool) -> list[Segment]:
    """The segments, which without a table are the sequences, without the queries that see no key."""
    if segments is None:
        found = [Segment(number, slice(0, q.shape[1]), slice(0, k.shape[1])) for number in range(q.shape[0])]
    else:
        check_ends(segments, q.shape[1], k.shape[1])
        found = list(read_segments(segments))
    seeing = (leave_out_blind(part, causal=causal) for part in found)
    return [part for part in seeing if part.queries.start < part.queries.stop]


def check_ends(segments: Tensor, n_queries: int, n_keys: int) -> None:
    """Refuse a table that leaves queries or keys out: the kernels would each do something else with them."""
    wrong = [ends for ends in segments[:, :, -1].tolist() if ends != [n_queries, n_keys]]
    if wrong:
        raise ConfigError(
            f"segments end at query {wrong[0][0]} and key {wrong[0][1]}, of {n_queries} queries and {n_keys} keys",
            why="every query and every key belongs to a segment",
            do=f"let the last entries of the table be {n_queries} and {n_keys}",
        )


def leave_out_blind(part: Segment, *, causal: bool) -> Segment:
    """The segment without its first queries, where it has fewer keys than queries and each sees those before it."""
    queries, n_keys = part.queries, part.keys.stop - part.keys.start
    if n_keys and not causal:
        return part
    return part._replace(queries=slice(max(queries.start, queries.stop - n_keys), queries.stop))


def take(x: Tensor, where: slice, part: Segment) -> Tensor:
    """The tokens of a segment, as a batch of one."""
    return x[part.sequence : part.sequence + 1, where]


def choose_rule(q: Tensor, k: Tensor, *, causal: bool, window: int) -> dict[str, Any]:
    """How the CPU's kernel is told what a segment's queries see: by a flag where it has one, else by a bias."""
    n_queries, n_keys = q.shape[1], k.shape[1]
    is_whole = not window or window >= n_keys
    if is_whole and (not causal or n_queries == n_keys):
        return {"causal": causal}
    positions = torch.arange(n_keys - n_queries, n_keys)[:, None], torch.arange(n_keys)[None, :]
    seen = mask_positions(*positions, causal=causal, window=window)
    bias = torch.zeros(seen.shape, dtype=q.dtype).masked_fill_(~seen, float("-inf"))
    return {"causal": False, "bias": bias[None, None]}


def pad_channels(q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> list[Tensor]:
    """All with as many channels as the widest of q and v, for kernels that want that; the added ones are zero, and
    change neither scores nor what is read of the others."""
    width = max(q.shape[-1], v.shape[-1])
    return [F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x for x in (q, k, v, *others)]


def attend_densely(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    *,
    scale: float,
    causal: bool,
    window: int,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The same on any device, without reading the table on the host; keeps scores [batch, heads, queries, keys]."""
    scores, _ = compute_scores(q, k, segments, scale=scale, causal=causal, window=window, cap=cap)
    lse = scores.logsumexp(-1)
    weights = compute_weights(scores, lse).to(v.dtype)
    values = v.transpose(1, 2).repeat_interleave(q.shape[2] // v.shape[2], dim=1)
    return (weights @ values).transpose(1, 2), lse


def attend_backward_densely(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    segments: Tensor | None,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    causal: bool,
    window: int,
    cap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients, from scores computed once more."""
    groups = q.shape[2] // k.shape[2]
    scores, keys = compute_scores(q, k, segments, scale=scale, causal=causal, window=window, cap=cap)
    weights = compute_weights(scores, lse)
    before = grad.transpose(1, 2).to(scores.dtype)
    values = v.transpose(1, 2).repeat_interleave(groups, dim=1).to(scores.dtype)
    share = (grad.to(scores.dtype) * out.to(scores.dtype)).sum(-1).transpose(1, 2).unsqueeze(-1)
    of_scores = weights * (before @ values.mT - share) * scale
    if cap:  # the derivative of cap * tanh(scores / cap), from its value; unseen keys have no weight
        of_scores = of_scores * (1 - (scores.masked_fill(weights == 0, 0.0) / cap).square())
    of_q = of_scores @ keys
    of_k = of_scores.mT @ q.transpose(1, 2).to(scores.dtype)
    of_v = weights.mT @ before
    of_k, of_v = (each.unflatten(1, (-1, groups)).sum(2) for each in (of_k, of_v))
    return of_q.transpose(1, 2).to(q.dtype), of_k.transpose(1, 2).to(k.dtype), of_v.transpose(1, 2).to(v.dtype)


def compute_weights(scores: Tensor, lse: Tensor) -> Tensor:
    """The softmax of scores whose lse is known; zeros for a query that sees no key."""
    return (scores - lse.masked_fill(lse == float("-inf"), 0.0).unsqueeze(-1)).exp()


def compute_scores(
    q: Tensor, k: Tensor, segments: Tensor | None, *, scale: float, causal: bool, window: int, cap: float
) -> tuple[Tensor, Tensor]:
    """Scores [batch, heads, queries, keys], -inf where a query does not see a key; and the keys of every query head."""
    wide = lse_dtype(q)
    keys = k.transpose(1, 2).repeat_interleave(q.shape[2] // k.shape[2], dim=1).to(wide)
    scores = (q.transpose(1, 2).to(wide) * scale) @ keys.mT
    if cap:
        scores = cap * (scores / cap).tanh()
    mask = build_mask(segments, q.shape[1], k.shape[1], causal=causal, window=window, device=q.device)
    return scores if mask is None else scores.masked_fill(~mask, float("-inf")), keys
