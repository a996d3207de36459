"""FlexAttention as higher-order ops, called directly: the public function refuses a backward on a CPU, and the form of
a block mask differs between versions. Checked on 2.11 (GPU) and 2.13 (CPU).

All take and return [batch, heads, sequence, channels]. Score and mask functions get scalars (the score, then the
numbers of the sequence, head, query and key) and tensors that are handed on as they are.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.flex_attention import create_fw_bw_graph
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import BlockMask, create_mask
from torch.utils._python_dispatch import _disable_current_modes

FLEX_ATTENTION = torch.ops.higher_order.flex_attention
FLEX_ATTENTION_BACKWARD = torch.ops.higher_order.flex_attention_backward
BLOCK = 128
"""Queries and keys of a block: what the kernels expect by default."""
ModFunction = Callable[..., Tensor]
_INDICES = 4
"""Sequence, head, query and key."""


class BlockTables(NamedTuple):
    """Which blocks of keys a block of queries sees in part or whole, and which queries see a block of keys: int32.

    Counts are [batch or 1, heads or 1, blocks], indices [batch or 1, heads or 1, blocks, blocks].
    """

    kv_num_blocks: Tensor
    kv_indices: Tensor
    full_kv_num_blocks: Tensor
    full_kv_indices: Tensor
    q_num_blocks: Tensor
    q_indices: Tensor
    full_q_num_blocks: Tensor
    full_q_indices: Tensor


class FlexGraphs(NamedTuple):
    """The functions of a kind of attention as graphs."""

    score: GraphModule
    gradient: GraphModule
    """Of the score: what it was given, and the gradient of what it returned -> the gradient of the score."""
    mask: GraphModule


def index_by_tensors() -> AbstractContextManager[Any]:
    """Inside, functions may index tensors by tensors; torch's compiler is imported here, not before."""
    mode: AbstractContextManager[Any] = torch._dynamo._trace_wrapped_higher_order_op.TransformGetItemToIndex()
    return mode


def evaluate_mask(mask: ModFunction, sizes: tuple[int, int, int, int], device: torch.device) -> Tensor:
    """Which query sees which key: bool [batch, heads, queries, keys]."""
    return create_mask(mask, *sizes, device)


@contextmanager
def traced_apart() -> Iterator[None]:
    """Functions are traced inside on fake tensors, unseen by whoever watches the step: a capture, or activation
    checkpointing, which counts ops and saved tensors and finds none of these when it runs a block once more."""
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda value: value, lambda value: value)
    with _disable_current_modes(), hooks, FakeTensorMode(), index_by_tensors():
        yield


def find_read_scalars(mask: ModFunction, tensors: Sequence[Tensor]) -> tuple[bool, bool]:
    """Whether what a query sees depends on the sequence, and on the head."""
    with traced_apart():
        indices = [torch.zeros((), dtype=torch.int32) for _ in range(_INDICES)]
        examples = [torch.empty(tuple(each.shape), dtype=each.dtype) for each in tensors]
        inputs = make_fx(mask)(*indices, *examples).graph.find_nodes(op="placeholder")
    return bool(inputs[0].users), bool(inputs[1].users)


def trace_mods(
    score: ModFunction,
    mask: ModFunction,
    score_tensors: Sequence[Tensor],
    mask_tensors: Sequence[Tensor],
    *,
    like: Tensor,
) -> FlexGraphs:
    """The functions as graphs of their ops, for queries like these."""
    with traced_apart(), torch.enable_grad():
        examples, masked = ([_copy_form(each) for each in tensors] for tensors in (score_tensors, mask_tensors))
        indices = [torch.zeros((), dtype=torch.int32, device=like.device) for _ in range(_INDICES)]
        value = torch.zeros((), dtype=like.dtype, device=like.device)
        score_graph = make_fx(score)(value, *indices, *examples)
        mask_graph = make_fx(mask)(*indices, *masked)
        inputs: Any = (torch.zeros((), dtype=like.dtype, device=like.device, requires_grad=True), *indices)
        gradient: Any = create_fw_bw_graph(score, inputs, tuple(examples))[1]
    return FlexGraphs(score_graph, gradient, mask_graph)


def _copy_form(value: Tensor) -> Tensor:
    return torch.empty(tuple(value.shape), dtype=value.dtype, device=value.device)


def flex_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tables: BlockTables,
    graphs: FlexGraphs,
    score_tensors: tuple[Tensor, ...],
    mask_tensors: tuple[Tensor, ...],
    *,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The output, and the lse to base 2."""
    block_mask = pack_block_mask(tables, q, k, graphs.mask)
    with torch._C._AutoDispatchBelowAutograd():  # its own autograd would take a number of the capture's
        found = FLEX_ATTENTION(q, k, v, graphs.score, block_mask, scale, find_options(), score_tensors, mask_tensors)
    return found[0], found[1]


def flex_attention_backward(
    grad: Tensor,
    lse_grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    tables: BlockTables,
    graphs: FlexGraphs,
    score_tensors: tuple[Tensor, ...],
    mask_tensors: tuple[Tensor, ...],
    *,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v from those of the output and of the lse."""
    block_mask = pack_block_mask(tables, q, k, graphs.mask)
    results = (out, lse, grad, lse_grad, graphs.score, graphs.gradient)
    with torch._C._AutoDispatchBelowAutograd():
        found = FLEX_ATTENTION_BACKWARD(
            q, k, v, *results, block_mask, scale, find_options(), score_tensors, mask_tensors
        )
    return found[0], found[1], found[2]


def flex_attention_in_dynamo(
    q: Tensor, k: Tensor, v: Tensor, tables: BlockTables, score: ModFunction, mask: ModFunction, *, scale: float
) -> Tensor:
    """The output where dynamo captures; it wants functions that hold their tensors themselves."""
    block_mask = pack_block_mask(tables, q, k, mask)
    found: tuple[Tensor, ...] = FLEX_ATTENTION(q, k, v, score, block_mask, scale, find_options())
    return found[0]


def pack_block_mask(tables: BlockTables, q: Tensor, k: Tensor, mask: ModFunction) -> tuple[Any, ...]:
    """A block mask as the ops of this version of torch take it."""
    lengths = q.shape[-2], k.shape[-2]
    made = BlockMask(seq_lengths=lengths, BLOCK_SIZE=(BLOCK, BLOCK), mask_mod=mask, **tables._asdict())
    packed: tuple[Any, ...] = made.as_tuple()
    return packed


def find_options() -> dict[str, Any]:
    """What the public function tells the kernels by default, and that backward needs the lse."""
    return {
        "PRESCALE_QK": False,
        "ROWS_GUARANTEED_SAFE": False,
        "BLOCKS_ARE_CONTIGUOUS": False,
        "WRITE_DQ": True,
        "OUTPUT_LOGSUMEXP": True,
        "OUTPUT_MAX": False,
    }


def is_fake(value: Tensor) -> bool:
    """Whether a tensor has no memory: a capture is running."""
    return isinstance(value, FakeTensor)
