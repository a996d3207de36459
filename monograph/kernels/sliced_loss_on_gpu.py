"""The sliced loss on a GPU: torch's products around a cross entropy in Triton, in as little memory as it takes.

Imported when the first CUDA tensor arrives, as gate_on_gpu.py is.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from monograph.compat.ops import add_product_
from monograph.kernels.cross_entropy import IGNORED
from monograph.kernels.launch import call, launch
from monograph.kernels.wide_on_gpu import scale_into

_LOGITS = 2048
"""Of a row of logits that are read at a time."""


def sliced_loss(
    hidden: Tensor, weight: Tensor, labels: Tensor, scale: Tensor, slice_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Loss and gradients; only one slice of logits exists at a time, and its gradient is written over it."""
    tokens = hidden.shape[0]
    labels, weight = labels.contiguous(), weight.contiguous()
    losses = torch.empty(tokens, dtype=torch.float32, device=hidden.device)
    grad_hidden, grad_weight = hidden.new_empty(hidden.shape), weight.new_empty(weight.shape)
    make = torch.empty if tokens else torch.zeros
    total = make(weight.shape, dtype=torch.float32, device=weight.device)
    logits = hidden.new_empty(min(slice_tokens, tokens), weight.shape[0])
    is_counted = labels != IGNORED
    counts = is_counted.to(hidden.dtype).unsqueeze(-1)
    for first in range(0, tokens, slice_tokens):
        part = slice(first, first + slice_tokens)
        rows = hidden[part]
        grad = logits[: rows.shape[0]]
        call(torch.mm, rows, weight.t(), out=grad)
        cross_entropy_(grad, labels[part], losses[part])
        call(torch.mm, grad, weight, out=grad_hidden[part])
        call(add_product_, total, grad.t(), rows * counts[part], is_first=first == 0)
    scale_into(grad_weight, total, scale)
    return losses.where(is_counted, 0.0).sum(), grad_hidden.mul_(counts), grad_weight


@triton.jit
def cross_entropy_kernel(
    logits, targets, losses, grads, logits_row, columns: tl.constexpr, ignored: tl.constexpr, block: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * logits_row
    grads += row * columns
    label = tl.load(targets + row)
    label = tl.where(label == ignored, 0, label)
    # Read before the sums, which all warps of the program wait for: afterwards one of them writes over it. A label that
    # is no token makes the loss not a number, which stops the run.
    at_label = tl.load(logits + label, (label >= 0) & (label < columns), float("nan")).to(tl.float32)
    top = tl.full([block], -1e30, tl.float32)
    total = tl.zeros([block], tl.float32)
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        x = tl.load(logits + column, column < columns, float("-inf")).to(tl.float32)
        higher = tl.maximum(top, x)
        total = total * tl.exp(top - higher) + tl.exp(x - higher)
        top = higher
    peak = tl.max(top, 0)
    amount = tl.sum(total * tl.exp(top - peak), 0)
    log_prob = at_label - peak - tl.log(amount)
    tl.store(losses + row, -log_prob)
    # exp(x) - 1 loses what is left of a probability close to one; its series does not.
    series = log_prob * (1.0 + log_prob / 2 * (1.0 + log_prob / 3 * (1.0 + log_prob / 4 * (1.0 + log_prob / 5))))
    of_label = tl.where(log_prob > -0.1, series, tl.exp(log_prob) - 1.0)
    share = 1.0 / amount
    for start in range(0, columns, block):
        column = start + tl.arange(0, block)
        x = tl.load(logits + column, column < columns, float("-inf")).to(tl.float32)
        value = tl.where(column == label, of_label, tl.exp(x - peak) * share)
        tl.store(grads + column, value.to(grads.dtype.element_ty), column < columns)


def cross_entropy_(logits: Tensor, targets: Tensor, losses: Tensor) -> None:
    """Write the losses of rows of logits, and their gradients over the logits."""
    rows, columns = logits.shape
    if logits.numel():
        block = min(_LOGITS, triton.next_power_of_2(columns))
        launch(
            cross_entropy_kernel,
            (rows,),
            logits,
            targets,
            losses,
            logits,
            logits.stride(0),
            columns=columns,
            ignored=IGNORED,
            block=block,
            num_warps=8,
        )
