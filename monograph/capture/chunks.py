"""The step captured once more for one chunk of the micro-batch: where the pass that cuts it gets sizes from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from monograph.capture.source import StepSource
from monograph.capture.trace import trace
from monograph.graph.chunk_nodes import pair_captures
from monograph.graph.edit import fake_mode
from monograph.graph.inputs import StepInputs
from monograph.graph.query import is_size
from monograph.graph.step_graph import StepGraph
from monograph.models.model import Model
from monograph.parallel.chunks import Chunks, find_chunks
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
    if not roots:
        return
    extent = max(value.shape[1] for value in inputs.batch.values() if value.ndim == 2)
    small = replace(
        inputs,
        batch={name: find_first(value, overlap, extent) for name, value in inputs.batch.items()},
        carry={name: find_first(value, overlap) for name, value in inputs.carry.items()},
        carry_gradients={name: find_first(value, overlap) for name, value in inputs.carry_gradients.items()},
    )
    mode = fake_mode(graph.module.graph)
    count = overlap.num_chunks if any(is_size(node) for node in graph.nodes) else 1
    chunks = [trace(step, model, small, has_sources=has_sources, mode=mode) for _ in range(count)]
    pair_captures(graph, chunks, roots)


def find_source_chunks(source: StepSource) -> dict[nn.Module, Chunks]:
    """Unit -> how the module in it is run that is chosen: of a pipeline stage those of its own units alone."""
    found = find_chunks(source.model, source.overlap)
    if source.stage is None:
        return found
    own = {source.model.get_submodule(path) for path in source.stage.units}
    return {unit: chunks for unit, chunks in found.items() if unit in own}


def find_first(value: Tensor, overlap: ExpertOverlapConfig, extent: int | None = None) -> Tensor:
    """The first chunk of a tensor [batch, sequence, ...]; with `extent`, one that has no such sequence is a table
    without a dim of tokens, and stays as it is for chunks of a sequence."""
    dim = 0 if overlap.chunk_dim == "batch" else 1
    if dim == 1 and extent is not None and value.shape[1] != extent:
        return value
    return value.narrow(dim, 0, value.shape[dim] // overlap.num_chunks).contiguous()
