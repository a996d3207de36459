"""Tensors packed into few large buffers in host memory, for sums over a network."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

BUCKET_BYTES = 32 << 20
_WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
"""Narrow floats are summed as float32 and rounded once."""


def find_sum_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype that a tensor is summed in."""
    return _WIDER.get(tensor.dtype, tensor.dtype)


def make_buckets(tensors: Sequence[Tensor], limit: int = BUCKET_BYTES) -> Iterator[list[Tensor]]:
    """Consecutive tensors of one dtype, together at most `limit` bytes unless one alone is larger."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        added = tensor.numel() * find_sum_dtype(tensor).itemsize
        is_other = bool(bucket) and find_sum_dtype(bucket[0]) is not find_sum_dtype(tensor)
        if bucket and (is_other or size + added > limit):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += added
    if bucket:
        yield bucket


@torch.no_grad()
def replace_by_sums(tensors: Sequence[Tensor], add_up: Callable[[Tensor], bool], limit: int = BUCKET_BYTES) -> None:
    """Hand each bucket to `add_up`, which sums it in place, and write the sums back while it returns True."""
    for bucket in make_buckets(tensors, limit):
        dtype = find_sum_dtype(bucket[0])
        flat = torch.cat([tensor.detach().reshape(-1).to("cpu", dtype) for tensor in bucket])
        if not add_up(flat):
            return
        parts = flat.split([tensor.numel() for tensor in bucket])
        for tensor, part in zip(bucket, parts, strict=True):
            tensor.copy_(part.view(tensor.shape))
