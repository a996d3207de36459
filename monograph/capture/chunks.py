"""The step captured once more for one chunk of the micro-batch: where the pass that cuts it gets sizes from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from monograph.capture.trace import trace
from monograph.graph.chunk_nodes import pair_captures
from monograph.graph.edit import fake_mode
from monograph.graph.inputs import StepInputs
from monograph.graph.query import is_size
from monograph.graph.step_graph import StepGraph
from monograph.models.model import Model
from monograph.parallel.overlap_config import ExpertOverlapConfig


def capture_chunk_nodes(
    graph: StepGraph,
    step: Callable[..., Any],
    model: Model,
    inputs: StepInputs,
    overlap: ExpertOverlapConfig,
    roots: Sequence[str],
    *,
    has_sources: bool = False,
) -> None:
    """Give the nodes of the roots their chunk nodes.

    Sizes that depend on data differ from chunk to chunk, and each needs names of its own: where there are any, every
    chunk has a capture of its own.
    """
    extent = max(value.shape[1] for value in inputs.batch.values() if value.ndim == 2)
    small = replace(inputs, batch={name: find_first(value, overlap, extent) for name, value in inputs.batch.items()})
    mode = fake_mode(graph.module.graph)
    count = overlap.num_chunks if any(is_size(node) for node in graph.nodes) else 1
    chunks = [trace(step, model, small, has_sources=has_sources, mode=mode) for _ in range(count)]
    pair_captures(graph, chunks, roots)


def find_first(value: Tensor, overlap: ExpertOverlapConfig, extent: int) -> Tensor:
    """The first chunk of one of the batch's tensors: [batch, sequence of this extent, ...], or a table that has no dim
    of tokens and stays as it is for chunks of a sequence."""
    dim = 0 if overlap.chunk_dim == "batch" else 1
    if dim == 1 and value.shape[1] != extent:
        return value
    return value.narrow(dim, 0, value.shape[dim] // overlap.num_chunks).contiguous()
