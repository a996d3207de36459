"""The sliced loss on a GPU: torch's matmuls around a cross entropy in Triton, in as little memory as it takes."""

import torch
from torch import Tensor

from monograph.compat.ops import add_matmul_
from monograph.compat.triton import tl, triton
from monograph.kernels.launch import call, find_device, launch
from monograph.labels import IGNORED_LABEL

_LOGITS = 16384
"""Of a row of logits that are read at a time: enough on their way for one program to keep a processor busy."""
_IN_A_LANE = 8
"""Logits next to each other that one lane takes, 16 bytes in bf16, so that sums are rescaled once for eight of them."""
_LOWEST = torch.finfo(torch.float32).min
"""What the largest logit so far begins with: below any logit that is a number, and finite, so that it can be subtracted
from a logit of minus infinity."""
_NEAR = 256 * 1024
"""Bytes of logits that a processor works on at a time, so that what is read again is still in the cache."""


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, chunk_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients; only one slice of logits exists at a time, and its gradient is written over it.

    What several slices add to the weight's gradient is summed in fp32, inside of the matmuls; that of a single one
    is the matmul itself.
    """
    tokens = hidden.shape[0]
    assert labels.shape == (tokens,) and scale.numel() == 1, "every token has a label"
    labels, weight = labels.contiguous(), weight.contiguous()
    losses = torch.empty(tokens, dtype=torch.float32, device=hidden.device)
    grad_hidden = hidden.new_empty(hidden.shape)
    if not tokens:
        return losses.sum(), grad_hidden, torch.zeros_like(weight)
    total = weight.new_empty(weight.shape, dtype=torch.float32 if tokens > chunk_tokens else weight.dtype)
    logits = hidden.new_empty(min(chunk_tokens, tokens), weight.shape[0])
    for first in range(0, tokens, chunk_tokens):
        part = slice(first, first + chunk_tokens)
        rows = hidden[part]
        grad = logits[: rows.shape[0]]
        call(torch.mm, rows, weight.t(), out=grad)
        cross_entropy_(grad, labels[part], losses[part], scale)
        call(torch.mm, grad, weight, out=grad_hidden[part])
        call(add_matmul_, total, grad.t(), rows, is_first=first == 0)
    if total.dtype is weight.dtype:
        return losses.sum(), grad_hidden, total
    del logits, grad  # the gradient of the weight takes their memory
    grad_weight = weight.new_empty(weight.shape)
    call(grad_weight.copy_, total)
    return losses.sum(), grad_hidden, grad_weight


@triton.jit
def cross_entropy_kernel(
    logits,
    targets,
    losses,
    scale,
    grads,
    rows,
    columns: tl.constexpr,
    ignored: tl.constexpr,
    lowest: tl.constexpr,
    lanes: tl.constexpr,
    width: tl.constexpr,
):
    """Rows one after the other, each read twice: once for its sum, once for the gradient."""
    block: tl.constexpr = lanes * width
    parts: tl.constexpr = (columns + block - 1) // block
    index = tl.arange(0, lanes)[:, None] * width + tl.arange(0, width)[None, :]
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        start = tl.full([], columns, tl.int64) * row
        mine, to = logits + start, grads + start
        label = tl.load(targets + row)
        is_counted = label != ignored
        label = tl.where(is_counted, label, 0)
        # Read before the sums, which all warps of the program wait for: afterwards one of them writes over it. A label
        # that is no token makes the loss not a number, which stops the run.
        at_label = tl.load(mine + label, (label >= 0) & (label < columns), float("nan")).to(tl.float32)
        top = tl.full([lanes], lowest, tl.float32)
        total = tl.zeros([lanes], tl.float32)
        for part in range(parts):
            column = part * block + index
            x = tl.load(mine + column, column < columns, float("-inf")).to(tl.float32)
            higher = tl.maximum(top, tl.max(x, 1))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(x - higher[:, None]), 1)
            top = higher
        peak = tl.max(top, 0)
        amount = tl.sum(total * tl.exp(top - peak), 0)
        log_prob = at_label - peak - tl.log(amount)
        tl.store(losses + row, tl.where(is_counted, -log_prob, 0.0))
        # exp(x) - 1 loses what is left of a probability close to one; its series does not.
        series = log_prob * (1.0 + log_prob / 2 * (1.0 + log_prob / 3 * (1.0 + log_prob / 4 * (1.0 + log_prob / 5))))
        factor = tl.where(is_counted, tl.load(scale), 0.0)
        of_label = tl.where(log_prob > -0.1, series, tl.exp(log_prob) - 1.0) * factor
        share = factor / amount
        for part in range(parts):
            column = part * block + index
            x = tl.load(mine + column, column < columns, float("-inf")).to(tl.float32)
            value = tl.where(column == label, of_label, tl.exp(x - peak) * share)
            tl.store(to + column, value.to(grads.dtype.element_ty), column < columns)


def cross_entropy_(logits: Tensor, targets: Tensor, losses: Tensor, scale: Tensor) -> None:
    """Write the losses of rows of logits, and `scale` times their gradients over the logits, which lie row by row."""
    rows, columns = logits.shape
    if logits.numel():
        lanes = max(1, min(_LOGITS, triton.next_power_of_2(columns)) // _IN_A_LANE)
        processors = torch.cuda.get_device_properties(find_device([logits])).multi_processor_count
        together = max(1, _NEAR // (columns * logits.element_size()))
        launch(
            cross_entropy_kernel,
            (min(rows, processors * together),),
            logits,
            targets,
            losses,
            scale,
            logits,
            rows,
            columns=columns,
            ignored=IGNORED_LABEL,
            lowest=_LOWEST,
            lanes=lanes,
            width=_IN_A_LANE,
            num_warps=32 if lanes >= 1024 else 8,
        )
