"""Memory that a kernel takes for itself while it runs, by op: it is neither read nor returned, and part of the peak."""

from collections.abc import Callable

from torch import Tensor
from torch.fx import Node

from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import name_of, value_of

_FLOAT32_BYTES = 4


def count_workspace(node: Node, sizes: LikelySizes) -> int:
    """Bytes that a node's kernel allocates and frees."""
    count = _WORKSPACES.get(name_of(node)) if node.op == "call_function" else None
    return count(node, sizes) if count else 0


def _chunked_cross_entropy(node: Node, sizes: LikelySizes) -> int:
    """The logits of a chunk, which their gradient overwrites. Several chunks add up a narrow weight's gradient in
    float32; the one that is returned, which counts as the node's value, is made of it when the logits are gone."""
    hidden, weight = (_find_tensor(node, index) for index in range(2))
    tokens, chunk = sizes.shape(hidden)[0], int(node.args[4])  # type: ignore[arg-type]
    logits = min(tokens, chunk) * sizes.shape(weight)[0] * hidden.element_size()
    if tokens <= chunk or weight.element_size() == _FLOAT32_BYTES:
        return logits
    result = sizes.elements(weight) * weight.element_size()
    return sizes.elements(weight) * _FLOAT32_BYTES + max(logits - result, 0)


def _attention_backward(node: Node, sizes: LikelySizes) -> int:
    """The gradient of queries, which blocks of keys add to in float32."""
    return sizes.elements(_find_tensor(node, 1)) * _FLOAT32_BYTES


def _find_tensor(node: Node, index: int) -> Tensor:
    value: Tensor = value_of(node.args[index])  # type: ignore[arg-type]
    return value


_WORKSPACES: dict[str, Callable[[Node, LikelySizes], int]] = {
    "chunked_cross_entropy": _chunked_cross_entropy,
    "attention_backward": _attention_backward,
}
