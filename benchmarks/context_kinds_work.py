"""What one rank does for benchmarks/context_kinds.py: a file of its own, because ranks import it."""

import os
from typing import NamedTuple

import torch
from torch import Tensor, nn

from monograph.axes import Group
from monograph.compat.ops import all_reduce
from monograph.execute.base import find_sequence_part
from monograph.execute.device import use_device
from monograph.kernels.attention_reference import attend_densely
from monograph.models.attention_core import AttentionCore
from monograph.models.attention_kind import CAUSAL, AttentionKind
from monograph.models.segments import build_segments
from monograph.models.sequence_part import WHOLE
from monograph.parallel.context_all_gather import AllGatherAttention
from monograph.parallel.context_ulysses import UlyssesAttention
from monograph.parallel.groups import Groups, joined_groups
from monograph.parallel.mesh import Mesh

LENGTH, DOCUMENT, WINDOW, CHUNK = 1024, 200, 96, 256
BATCH = 2


class Shape(NamedTuple):
    """Heads and channels of q, k and v."""

    heads: int
    kv_heads: int
    channels: int
    value_channels: int


SHAPES = {
    "8/2 heads of 64": Shape(8, 2, 64, 64),
    "8/4 heads of 128": Shape(8, 4, 128, 128),
    "8 heads of 192/128 (MLA)": Shape(8, 8, 192, 128),
}


class Case(NamedTuple):
    """A kind of attention, with documents or not, with sinks or not."""

    kind: AttentionKind = CAUSAL
    has_documents: bool = False
    has_sinks: bool = False


KINDS = {
    "causal": Case(),
    "causal, documents": Case(has_documents=True),
    "causal, documents, sinks": Case(has_documents=True, has_sinks=True),
    "window": Case(AttentionKind("window", window=WINDOW)),
    "window, documents, sinks": Case(AttentionKind("window", window=WINDOW), has_documents=True, has_sinks=True),
    "chunks": Case(AttentionKind("chunked", chunk=CHUNK)),
    "chunks, documents": Case(AttentionKind("chunked", chunk=CHUNK), has_documents=True),
    "full": Case(AttentionKind("full", causal=False)),
    "full, documents": Case(AttentionKind("full", causal=False), has_documents=True),
}


def measure_kinds(device: str, method: str, shape: Shape) -> dict[str, float]:
    """By kind, the largest distance of this rank's values from those of one device."""
    mesh = Mesh(cp=int(os.environ["WORLD_SIZE"]), cp_method=method)  # type: ignore[arg-type]
    with joined_groups(mesh, use_device(device), timeout_seconds=60) as groups:
        return {name: measure(shape, case, groups) for name, case in KINDS.items()}


def measure(shape: Shape, case: Case, groups: Groups) -> float:
    """The largest distance of an output or gradient, as a part of the largest value."""
    part, device, scale = find_sequence_part(groups), groups.device, shape.channels**-0.5
    values = make_values(shape, case, device)
    documents = (torch.arange(LENGTH) // DOCUMENT).expand(BATCH, LENGTH) if case.has_documents else None
    wanted = attend_alone(values, case, documents, scale)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    mine = [part.take(each, 1).to(dtype).contiguous().requires_grad_() for each in values[:3]]
    sinks = None if values[4] is None else values[4].clone().requires_grad_()
    table = build_segments(documents, case.kind, part.attended, batch=BATCH, length=LENGTH)
    core = build_core(AttentionCore(case.kind, scale=scale), groups)
    out = core(*mine, None if table is None else table.to(device), sinks)
    out.backward(part.take(values[3], 1).to(dtype))
    found = [out, *(each.grad for each in mine)]
    distances = [find_distance(one, part.take(other, 1), other) for one, other in zip(found, wanted[:4], strict=True)]
    if sinks is not None:
        assert sinks.grad is not None
        distances.append(find_distance(all_reduce(sinks.grad, "sum", Group.CP.value), wanted[4], wanted[4]))
    return max(distances)


def make_values(shape: Shape, case: Case, device: torch.device) -> list[Tensor | None]:
    """q, k, v, the gradient of the output, and sinks, of whole sequences: numbers that bf16 has, in fp32."""
    generator = torch.Generator().manual_seed(0)
    sizes = [(shape.heads, shape.channels), (shape.kv_heads, shape.channels), (shape.kv_heads, shape.value_channels)]
    sizes.append((shape.heads, shape.value_channels))
    made = [torch.randn(BATCH, LENGTH, *size, generator=generator).bfloat16().float().to(device) for size in sizes]
    return [*made, torch.randn(shape.heads, generator=generator).to(device) if case.has_sinks else None]


def attend_alone(values: list[Tensor | None], case: Case, documents: Tensor | None, scale: float) -> list[Tensor]:
    """Naive attention in fp32: output and gradients."""
    q, k, v, grad, sinks = (None if each is None else each.clone().requires_grad_() for each in values)
    assert q is not None and k is not None and v is not None
    table = build_segments(documents, case.kind, WHOLE, batch=BATCH, length=LENGTH)
    table = None if table is None else table[:, 0].to(q.device)
    kind = case.kind
    out, lse = attend_densely(q, k, v, table, scale=scale, causal=kind.causal, window=kind.window)
    if sinks is not None:
        out = out * torch.sigmoid(lse - sinks[:, None]).transpose(1, 2).unsqueeze(-1)
    out.backward(grad)
    leaves = [q, k, v] if sinks is None else [q, k, v, sinks]
    return [out.detach(), *(each.grad for each in leaves if each.grad is not None)]


def build_core(core: AttentionCore, groups: Groups) -> nn.Module:
    """What parallelism puts in the place of a core."""
    mesh = groups.mesh
    if mesh.cp_method == "ulysses":
        return UlyssesAttention(core, mesh.cp, groups.coords())
    return AllGatherAttention(core, mesh.cp)


def find_distance(one: Tensor, other: Tensor, whole: Tensor) -> float:
    """The largest difference, as a part of the largest value of the whole tensor."""
    return float((one.detach().float() - other).abs().max() / whole.abs().max())
