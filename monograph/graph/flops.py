"""Floating-point operations of one node. Matmuls and attention count; everything else is bound by memory.

A multiplication and its addition count as two. Attention counts every query with every key in its reach, causal or
not: the convention of most published figures (attention_scores.py). Backward through attention computes the scores once
more.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.fx import GraphModule, Node

from monograph.graph.attention_scores import find_scores
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import name_of, value_of

Shape = tuple[int, ...]


def count_flops(node: Node, sizes: LikelySizes) -> int:
    """The operations of a node; of a node that calls graphs of its own, the operations inside them."""
    formula = _FORMULAS.get(name_of(node))
    if formula is not None:
        flops = formula(*(sizes.shape(value) for value in _tensors(node)))
        scores = find_scores(node, sizes)
        return flops if scores is None else flops // scores.keys * scores.reach
    return sum(count_flops(inner, sizes) for graph in find_inner(node) for inner in graph.graph.nodes)


def find_inner(node: Node) -> list[GraphModule]:
    """The graphs that a node runs: a submodule that it calls, or those among its arguments."""
    owner = node.graph.owning_module
    if owner is None or node.op not in ("call_module", "call_function"):
        return []
    callees = [node] if node.op == "call_module" else [each for each in node.all_input_nodes if each.op == "get_attr"]
    found = [_find_attribute(owner, str(each.target)) for each in callees]
    return [each for each in found if isinstance(each, GraphModule)]


def _find_attribute(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name, None)
    return owner


def _tensors(node: Node) -> list[Tensor]:
    values = (value_of(each) for each in node.args if isinstance(each, Node))
    return [value for value in values if isinstance(value, Tensor)]


def _mm(left: Shape, right: Shape, *_: Shape) -> int:
    return 2 * math.prod(left) * right[-1]


def _addmm(_bias: Shape, left: Shape, right: Shape, *_: Shape) -> int:
    return _mm(left, right)


def _grouped_mm(left: Shape, right: Shape, *_: Shape) -> int:
    """Groups cut the rows of `left`, the columns of `right`, or the dim that is summed over."""
    if len(left) == 3 and len(right) == 2:
        return 2 * math.prod(right) * left[1]
    return _mm(left, right)


def _grouped_weight_grad(grad: Shape, rows: Shape, *_: Shape) -> int:
    return 2 * math.prod(grad) * rows[-1]


def _segment_attention(query: Shape, key: Shape, value: Shape, *_: Shape) -> int:
    """[batch, sequence, heads, channels]; with all keys."""
    scores = math.prod(query[:-1]) * key[1]
    return 2 * scores * (query[-1] + value[-1])


def _segment_attention_backward(_gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Shape) -> int:
    scores = math.prod(query[:-1]) * key[1]
    return 2 * scores * (3 * query[-1] + 2 * value[-1])


def _attention(query: Shape, key: Shape, value: Shape, *_: Shape) -> int:
    scores = math.prod(query[:-1]) * key[-2]
    return 2 * scores * (query[-1] + value[-1])


def _attention_backward(query: Shape, key: Shape, value: Shape, *_: Shape) -> int:
    """Scores once more and the gradients of query and key (3 matmuls), of the weights and of value (2)."""
    scores = math.prod(query[:-1]) * key[-2]
    return 2 * scores * (3 * query[-1] + 2 * value[-1])


def _attention_from_gradient(_gradient: Shape, *shapes: Shape) -> int:
    """The same where the gradient comes first."""
    return _attention_backward(*shapes)


def _chunked_cross_entropy(hidden: Shape, weight: Shape, *_: Shape) -> int:
    """The logits, and the gradients of both."""
    return 3 * _mm(hidden, weight[::-1])


def _matmul_transposed(x: Shape, weight: Shape, *_: Shape) -> int:
    """Both operands are contracted along their last dim."""
    return _mm(x, weight[::-1])


def _expert_matmul(rows: Shape, weights: Shape, *_: Shape) -> int:
    """Weights are [experts, out, in]."""
    return 2 * math.prod(rows) * weights[-2]


def _expert_swiglu(rows: Shape, gate: Shape, *_: Shape) -> int:
    return 2 * _expert_matmul(rows, gate)


def _expert_matmul_sum(rows: Shape, weight: Shape, *_: Shape) -> int:
    return 4 * math.prod(rows) * weight[-1]


_KERNELS = ("flash", "efficient", "cudnn", "fused")
_FORMULAS: dict[str, Callable[..., int]] = {
    "mm": _mm,
    "bmm": _mm,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "_grouped_mm": _grouped_mm,
    "grouped_matmul": _mm,
    "grouped_matmul_weight_grad": _grouped_weight_grad,
    **{f"_scaled_dot_product_{kernel}_attention": _attention for kernel in _KERNELS},
    **{f"_scaled_dot_product_{kernel}_attention_backward": _attention_from_gradient for kernel in _KERNELS},
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention_from_gradient,
    "attention": _segment_attention,
    "attention_backward": _segment_attention_backward,
    "chunked_cross_entropy": _chunked_cross_entropy,
    "matmul_swiglu": _matmul_transposed,
    "float8_matmul": _matmul_transposed,
    "float8_grouped_matmul": _expert_matmul,
    "expert_matmul": _expert_matmul,
    "expert_swiglu": _expert_swiglu,
    "expert_matmul_sum": _expert_matmul_sum,
    "matmul_swiglu_backward": _mm,
    "flex_attention": _attention,
    "flex_attention_backward": _attention_backward,
}
