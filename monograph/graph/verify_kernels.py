"""What must hold between the shapes of an operator's arguments where its kernel does not check it itself.

Most of torch's operators refuse arguments that do not fit. Attention and the custom ops' GPU kernels compute addresses
from some arguments and read others at them, so a graph that was read from a file is checked here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from monograph.graph.allowed_ops import name_of
from monograph.kernels.attention import KERNELS

Shape = tuple[int, ...]
Arguments = Mapping[str, Any]
"""Name of an argument -> the shape of a tensor, or the argument itself."""


def do_shapes_fit(target: Any, arguments: Arguments) -> bool:
    """Whether a kernel that trusts its arguments may be given tensors of these shapes."""
    name = name_of(target)
    if "_scaled_dot_product_" in name:
        return _does_attention_fit(arguments)
    rule = KERNEL_SHAPES.get(name.removesuffix(".default").removeprefix("monograph.")) if "monograph." in name else None
    return rule is None or bool(rule(arguments))


def _does_attention_fit(given: Arguments) -> bool:
    query, key, value = given["query"], given["key"], given["value"]
    if not len(query) == len(key) == len(value) == 4:
        return False
    batch, heads, length, channels = query
    keys = key[2]
    is_paired = key[:3] == value[:3] and key[0] == batch and key[3] == channels
    if not is_paired or min(heads, key[1]) < 1 or heads % key[1]:
        return False
    outs = [given[name] for name in ("out", "grad_out", "grad_out_") if given.get(name) is not None]
    if any(out != (batch, heads, length, value[3]) for out in outs):
        return False
    sums = given.get("logsumexp")
    if sums is not None and (sums[:2] != (batch, heads) or len(sums) < 3 or sums[2] < length):
        return False
    masks = [given[name] for name in ("attn_mask", "attn_bias") if given.get(name) is not None]
    full = (batch, heads, length, keys)
    return all(
        len(mask) <= 4 and all(size in (1, whole) for size, whole in zip(mask[::-1], full[::-1], strict=False))
        for mask in masks
    )


def _same(*names: str) -> Callable[[Arguments], bool]:
    return lambda given: len({given[name] for name in names if given.get(name) is not None}) == 1


def _norm(given: Arguments) -> bool:
    x = given["x"]
    is_same = all(given[name] == x for name in ("grad", "other") if given.get(name) is not None)
    return bool(x) and given["weight"] == x[-1:] and is_same and given.get("rstd", (*x[:-1], 1)) == (*x[:-1], 1)


def _rotation(heads: Shape, channels: int, given: Arguments) -> bool:
    """Angles are [batch or 1, sequence, 1, pairs of channels]."""
    cos, sin = given["cos"], given["sin"]
    if len(heads) != 4 or cos != sin or len(cos) != 4:
        return False
    return cos[0] in (1, heads[0]) and cos[1:3] == (heads[1], 1) and 2 * cos[3] == channels


def _rope_packed(given: Arguments) -> bool:
    parts = [given[name] for name in ("q", "k", "v")]
    if not all(len(part) == 4 and part[:2] == parts[0][:2] for part in parts):
        return False
    return all(_rotation(part, part[3], given) for part in parts[:2])


def _join_heads(given: Arguments) -> bool:
    own, tail = given["own"], given["tail"]
    if not len(own) == len(tail) == 4 or own[:2] != tail[:2] or tail[2] not in (1, own[2]):
        return False
    return _rotation(tail, tail[3], given)


def _split_heads(given: Arguments) -> bool:
    keys, values, cos = given["grad_keys"], given["grad_values"], given["cos"]
    if not len(keys) == len(values) == len(cos) == 4 or keys[:3] != values[:3] or 2 * cos[3] > keys[3]:
        return False
    return _rotation(keys, 2 * cos[3], given)


def _matmul_swiglu(given: Arguments) -> bool:
    x, weight = given["x"], given["weight"]
    return len(x) == len(weight) == 2 and x[1] == weight[1] and weight[0] % 2 == 0


def _matmul_swiglu_backward(given: Arguments) -> bool:
    grad, weight, x, up = (given[name] for name in ("grad", "weight", "x", "up"))
    if not len(grad) == len(weight) == 2 or grad[1] != weight[0] or x != up or not x:
        return False
    rows = 1
    for size in x[:-1]:
        rows *= size
    return (rows, x[-1]) == (grad[0], weight[1])


def _add_embedding_rows(given: Arguments) -> bool:
    """A row of the gradient for every id; ids beyond the base are left out."""
    base, grad = given["base"], given["grad"]
    return len(base) == 2 and bool(grad) and grad[-1] == base[1] and given["ids"] == grad[:-1]


def _expert_matmul(given: Arguments) -> bool:
    return _fits_experts(given["rows"], given["weight"], given["ends"], 2)


def _expert_swiglu(given: Arguments) -> bool:
    return given["gate"] == given["up"] and _fits_experts(given["rows"], given["gate"], given["ends"], 2)


def _expert_matmul_sum(given: Arguments) -> bool:
    if given["rows"] != given["other_rows"] or given["weight"] != given["other_weight"]:
        return False
    return _fits_experts(given["rows"], given["weight"], given["ends"], 1)


def _fits_experts(rows: Any, weight: Any, ends: Any, summed: int) -> bool:
    """Rows by stacked weights, one of whose dims is summed over."""
    return len(rows) == 2 and len(weight) == 3 and rows[1] == weight[summed] and ends == weight[:1]


def _chunked_cross_entropy(given: Arguments) -> bool:
    hidden, weight = given["hidden"], given["weight"]
    if not len(hidden) == len(weight) == 2 or hidden[1] != weight[1] or given["chunk_tokens"] < 1:
        return False
    return given["labels"] == hidden[:1] and given["scale"] in ((), (1,))


def _combine_rows(given: Arguments) -> bool:
    rows, weights, inverse = given["rows"], given["weights"], given["inverse"]
    if not len(rows) == len(weights) == 2 or inverse != (weights[0] * weights[1],):
        return False
    grad, order = given.get("grad", (weights[0], rows[1])), given.get("order", rows[:1])
    return grad == (weights[0], rows[1]) and order == rows[:1]


def _sum_rows(given: Arguments) -> bool:
    return len(given["rows"]) == len(given["places"]) == 2


def _attention(given: Arguments) -> bool:
    """Heads in groups; a table of segments for every sequence; results of the forward where backward reads them."""
    q, k, v = given["q"], given["k"], given["v"]
    if not len(q) == len(k) == len(v) == 4 or min(q[2], k[2]) < 1 or q[2] % k[2]:
        return False
    is_paired = q[0] == k[0] and k[:3] == v[:3] and q[3] == k[3]
    segments, sinks = given.get("segments"), given.get("sinks")
    has_table = segments is None or (len(segments) == 3 and segments[:2] == (q[0], 2) and segments[2] > 1)
    outs = [given[name] for name in ("out", "grad") if given.get(name) is not None]
    are_outs = all(out == (*q[:3], v[3]) for out in outs)
    return (
        is_paired
        and has_table
        and (sinks is None or sinks == (q[2],))
        and are_outs
        and given.get("lse", (q[0], q[2], q[1])) == (q[0], q[2], q[1])
        and 0 <= given["kernel"] < len(KERNELS)
        and given["window"] >= 0
    )


def _clamped_swiglu(given: Arguments) -> bool:
    """Pairs of channels; the gradient has half as many."""
    pairs = given["pairs"]
    if not pairs or pairs[-1] % 2:
        return False
    half = (*pairs[:-1], pairs[-1] // 2)
    return given.get("grad", half) == half


def _expert_bias(given: Arguments) -> bool:
    """One bias for every expert whose rows end somewhere."""
    rows, ends = given.get("rows", given.get("grad")), given["ends"]
    if rows is None or len(rows) != 2 or len(ends) != 1:
        return False
    return given.get("bias", (ends[0], rows[1])) == (ends[0], rows[1])


def _float8_cast(given: Arguments) -> bool:
    """A matrix, or a stack of matrices; what is known of columns is one number for each."""
    x = given["x"]
    columns = (*x[:-2], *x[-1:])
    return len(x) > 1 and given.get("amax", columns) == columns


def _float8_of_whole(given: Arguments) -> bool:
    """A matrix, or a stack; what is known is one number for all of it."""
    return len(given["x"]) > 1 and given.get("amax", (1,)) == (1,)


def _float8_norm(given: Arguments) -> bool:
    """Threads store eight numbers at once."""
    return _norm(given) and given["x"][-1] % 8 == 0


def _float8_grouped_matmul(given: Arguments) -> bool:
    """Rows with a scale each, and for every expert a matrix whose rows have a scale each."""
    rows, weights = given["rows"], given["weights"]
    if len(rows) != 2 or len(weights) != 3 or rows[1] != weights[2]:
        return False
    has_scales = given["row_scale"] == (rows[0], 1) and given["weight_scale"] == (*weights[:2], 1)
    return has_scales and given["ends"] == weights[:1]


KERNEL_SHAPES: Mapping[str, Callable[[Arguments], bool]] = {
    "swiglu": _same("x", "up"),
    "swiglu_backward": _same("grad", "x", "up"),
    "swiglu_backward_recompute": _same("grad", "x", "up"),
    "swiglu_backward_packed": _same("grad", "x", "up"),
    "swiglu_backward_packed_recompute": _same("grad", "x", "up"),
    "clamped_swiglu": _clamped_swiglu,
    "clamped_swiglu_backward": _clamped_swiglu,
    "add_expert_bias": _expert_bias,
    "expert_bias_grad": _expert_bias,
    "float8_cast": _float8_cast,
    "float8_cast_both": _float8_cast,
    "float8_cast_amax": _float8_cast,
    "float8_cast_transposed": _float8_cast,
    "float8_amax": _float8_of_whole,
    "float8_cast_known": _float8_of_whole,
    "float8_grouped_matmul": _float8_grouped_matmul,
    "float8_norm": _float8_norm,
    "float8_add_norm": _float8_norm,
    "float8_swiglu": _same("x", "up"),
    "float8_swiglu_backward": _same("grad", "x", "up"),
    "matmul_swiglu": _matmul_swiglu,
    "matmul_swiglu_backward": _matmul_swiglu_backward,
    "add_embedding_rows": _add_embedding_rows,
    "expert_matmul": _expert_matmul,
    "expert_swiglu": _expert_swiglu,
    "expert_matmul_sum": _expert_matmul_sum,
    "rope": lambda given: len(given["x"]) == 4 and _rotation(given["x"], given["x"][3], given),
    "rope_packed": _rope_packed,
    "attention": _attention,
    "attention_backward": _attention,
    "norm": _norm,
    "add_norm": _norm,
    "norm_backward": _norm,
    "norm_backward_recompute": _norm,
    "chunked_cross_entropy": _chunked_cross_entropy,
    "join_heads": _join_heads,
    "split_heads": _split_heads,
    "sum_rows": _sum_rows,
    "combine_rows": _combine_rows,
    "combine_rows_backward": _combine_rows,
    "add_wide": _same("one", "other"),
    "random_uniform": lambda given: given["key"] == (),
    "dropout": lambda given: given["key"] == () and bool(given["value"]) and given["starts"] == given["value"][:-1],
}
"""Custom op -> the relation its kernel relies on."""
