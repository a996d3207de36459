"""Ops: those whose names are private, those that differ between versions, and collectives as graphs hold them.

This folder has every torch API we use that is private, or differs between the versions we serve. Checked on 2.11 and
2.13.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.fx import traceback
from torch.testing._internal.distributed.fake_pg import FakeStore


def grouped_mm(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """rows [n, in] by weights [groups, in, out]: group g multiplies the rows from ends[g - 1] to ends[g] (int32).

    Public as torch.nn.functional.grouped_mm since 2.10; here because what it accepts still changes.
    """
    return F.grouped_mm(rows, weights, offs=ends)


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """`value.to(dtype)` for use inside an autograd.Function, where a cast that changes nothing must leave no trace.

    On torch 2.11, a Function whose forward ends in such a cast gets zero gradients under dynamo, without a word.
    """
    return value if value.dtype == dtype else value.to(dtype)


def add_matmul_(total: Tensor, left: Tensor, right: Tensor, *, is_first: bool) -> None:
    """Add left @ right to an fp32 sum, or begin one: added up inside of the matmul, and rounded nowhere.

    Matmuls of narrow operands with a wide result are CUDA's alone, and new.
    """
    wider: dict[str, Any] = {} if left.dtype == total.dtype else {"out_dtype": total.dtype}
    if is_first:
        torch.mm(left, right, out=total, **wider)
    else:
        torch.addmm(total, left, right, out=total, **wider)


def has_grouped_mm(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether grouped_mm serves this device and dtype without reading the offsets on the host.

    CUDA: a real kernel from compute capability 9.0 on; below it torch copies the offsets to the host. Without a GPU in
    this process, CUDA tensors are fake ones and stand for a machine that has one. CPU: a loop inside torch.
    """
    if dtype != torch.bfloat16:
        return False
    if device.type == "cuda":
        return not torch.cuda.is_available() or torch.cuda.get_device_capability(device) >= (9, 0)
    return device.type == "cpu"


def fits_grouped_mm(dtype: torch.dtype, *widths: int) -> bool:
    """Whether rows of these widths begin where grouped_mm wants them to: at multiples of 16 bytes, on every device."""
    return all(width * dtype.itemsize % 16 == 0 for width in widths)


def has_native_matmul(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this device multiplies such matrices with instructions of its own; what is not known counts as yes.

    A processor that cannot do it in bf16 gets torch's loop over numbers: 200 times the time of fp32 on one of them.
    """
    if device.type != "cpu" or dtype is not torch.bfloat16 or not torch.backends.mkldnn.is_available():
        return True
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


# --- Ops that graphs contain and whose names are private. ---

ATEN = torch.ops.aten
ALL_GATHER = torch.ops._c10d_functional.all_gather_into_tensor.default
REDUCE_SCATTER = torch.ops._c10d_functional.reduce_scatter_tensor.default
ALL_REDUCE = torch.ops._c10d_functional.all_reduce.default
ALL_TO_ALL = torch.ops._c10d_functional.all_to_all_single.default
WAIT_TENSOR = torch.ops._c10d_functional.wait_tensor.default
READ_SIZE = ATEN._local_scalar_dense.default
"""Brings a number from data to the host, where it becomes a size."""
UNSAFE_VIEW = ATEN._unsafe_view.default
GROUPED_MM = ATEN._grouped_mm.default


def costly_ops() -> frozenset[Any]:
    """Ops of torch's whose results are saved, not recomputed: matmuls, attention and top-k."""
    names = ("mm", "bmm", "addmm", "baddbmm", "linear", "_grouped_mm", "topk")
    attention = (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
    )
    flex = torch.ops.higher_order.flex_attention
    return frozenset(getattr(ATEN, name).default for name in (*names, *attention)) | {flex}


# --- Functional collectives by group name: the only ops whose results a graph can hold. ---


def all_gather(value: Tensor, size: int, group: str) -> Tensor:
    """Every rank's tensor, concatenated along dim 0."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_gather_into_tensor(value, size, group))


def start_all_gather(value: Tensor, size: int, group: str) -> Tensor:
    """Start an all_gather along dim 0; what it gives is read after `finish`."""
    return torch.ops._c10d_functional.all_gather_into_tensor(value, size, group)


def start_reduce_scatter(value: Tensor, size: int, group: str) -> Tensor:
    """Start a sum over ranks, scattered along dim 0; what it gives is read after `finish`."""
    return torch.ops._c10d_functional.reduce_scatter_tensor(value, "sum", size, group)


def finish(started: Tensor) -> Tensor:
    """The result of a collective that was started."""
    return torch.ops._c10d_functional.wait_tensor(started)


def reduce_scatter(value: Tensor, size: int, group: str) -> Tensor:
    """The sum over ranks, of which each rank gets its piece along dim 0."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.reduce_scatter_tensor(value, "sum", size, group))


def all_reduce(value: Tensor, operation: str, group: str) -> Tensor:
    """The sum or max over ranks, out of place."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_reduce(value, operation, group))


def all_to_all(rows: Tensor, received: list[int], sent: list[int], group: str) -> Tensor:
    """all_to_all of rows: sent[i] rows go to rank i, received[i] come from it."""
    ops = torch.ops._c10d_functional
    return ops.wait_tensor(ops.all_to_all_single(rows, received, sent, group))


def count_members(group: str) -> int:
    """How many ranks a group has."""
    return torch._C._distributed_c10d._resolve_process_group(group).size()  # type: ignore[arg-type]


def find_process_group(name: str) -> dist.ProcessGroup:
    """The group behind a name."""
    return torch._C._distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]


def register_work(value: Tensor, work: Any) -> None:
    """Let `wait_tensor(value)` wait for this work."""
    torch._C._distributed_c10d._register_work(value, work)


def wait_tensor(value: Tensor) -> Tensor:
    """The value of a collective once it is complete; an error when it failed."""
    return torch.ops._c10d_functional.wait_tensor(value)


def find_collective_ops() -> set[Any]:
    """The ops that the functions above are made of: each start of a collective, and the end of all of them."""
    ops = torch.ops._c10d_functional
    starts = (ops.all_gather_into_tensor, ops.reduce_scatter_tensor, ops.all_reduce, ops.all_to_all_single)
    return {op.default for op in (*starts, ops.wait_tensor)}


def alias_process_group(name: str, group: dist.ProcessGroup) -> None:
    """Let collectives find `group` under a second name; the group's own name stays what it was."""
    torch._C._distributed_c10d._register_process_group(name, group)  # type: ignore[arg-type]


def remove_group_alias(name: str) -> None:
    """Forget a name given by `alias_process_group`."""
    torch._C._distributed_c10d._unregister_process_group(name)  # type: ignore[arg-type]


def make_nccl_options(most_channels: int, timeout: timedelta) -> Any:
    """Options of a new NCCL group with so many channels at most; 0 leaves it to NCCL. Every member must give the same.

    NCCL_MIN_CTAS and NCCL_MAX_CTAS in the environment win over them.
    """
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout  # torch warns where it is not the group's
    if most_channels:
        options.config.min_ctas, options.config.max_ctas = 1, most_channels
    return options


def abort_process_groups() -> None:
    """Leave all groups after a failure: NCCL's kernels are told to give up, where destroying would wait for them."""
    if "nccl" in str(dist.get_backend_config()):
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()


_CYCLES_PER_SECOND = 1.5e9
"""About what the clock that `sleep_on_device` counts makes; only emulated collectives depend on it."""


def sleep_on_device(seconds: float) -> None:
    """Keep the current CUDA stream busy without using the device."""
    torch.cuda._sleep(int(seconds * _CYCLES_PER_SECOND))


def find_default_store() -> dist.Store:
    """The store that the ranks of this process's group met at."""
    return dist.distributed_c10d._get_default_store()


def fake_store() -> dist.Store:
    """A store for the `fake` backend, which pretends to be one rank of any world."""
    return FakeStore()


@contextmanager
def annotations_restored() -> Iterator[None]:
    """Annotations are what they were before, also after an error that left some open: torch keeps them in a global."""
    before = dict(traceback.current_meta.get("custom", {}))
    try:
        yield
    finally:
        if before:
            traceback.current_meta["custom"] = before
        else:
            traceback.current_meta.pop("custom", None)


def annotate_nodes(values: dict[str, str]) -> AbstractContextManager[None]:
    """Put `values` into the custom metadata of every node traced inside (torch.fx.traceback, since 2.9)."""
    return traceback.annotate(values)


def find_op(name: str) -> Any:
    """The operator that `library.packet.overload` names; None when there is none."""
    parts = name.split(".")
    if len(parts) != 3 or not all(part.isidentifier() for part in parts):
        return None
    packet = getattr(getattr(torch.ops, parts[0]), parts[1], None)
    found = getattr(packet, parts[2], None)
    return found if isinstance(found, torch._ops.OpOverload) else None
