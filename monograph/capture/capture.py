"""Capture: the training step, or the forward alone, as a graph for batches of one shape."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch

from monograph.capture.block_repeats import BlockRepeat, find_block_repeats, find_skipped_blocks
from monograph.capture.chunks import capture_chunk_nodes, find_source_chunks
from monograph.capture.failure import explain_failure, is_of_model, refuse_random_ops
from monograph.capture.source import StepSource
from monograph.capture.stage import make_stage_forward, make_stage_step
from monograph.capture.step import StepFunction, make_forward, make_step
from monograph.capture.trace import trace
from monograph.errors import MonographError
from monograph.graph.inputs import StepInputs
from monograph.graph.step_graph import StepGraph
from monograph.log import get_log
from monograph.models.model import Model
from monograph.parallel.shard import BlocksDiffer

log = get_log("capture")
GraphKind = Literal["step", "evaluation"]


def capture(
    source: StepSource,
    inputs: StepInputs,
    *,
    kind: GraphKind = "step",
    has_sources: bool = False,
    repeats: Sequence[BlockRepeat] | None = None,
) -> StepGraph:
    """Forward, loss and backward as the model is written, before any pass.

    Of identical blocks in a row (`repeats`; by default all there are) three are traced, and the others copied. With
    `has_sources` nodes know the line of model code they come from, which takes longer.
    """
    if repeats is None:
        is_whole = source.overlap.is_on or source.probe
        units = None if source.stage is None else source.stage.units
        repeats = [] if is_whole else find_block_repeats(source.model, source.table, units)
    try:
        graph = _trace(source, inputs, kind, repeats, has_sources=has_sources)
    except BlocksDiffer as reason:
        log.debug("all blocks are captured: %s", reason)
        graph = _trace(source, inputs, kind, [], has_sources=has_sources)
    refuse_random_ops(graph)
    if source.overlap.strategy == "graph" and kind == "step":
        step = _make_function(source, kind, [])
        roots = [chunks.path for chunks in find_source_chunks(source).values()]
        capture_chunk_nodes(graph, step, source.model, inputs, source.overlap, roots, has_sources=has_sources)
    return graph


def _trace(
    source: StepSource, inputs: StepInputs, kind: GraphKind, repeats: Sequence[BlockRepeat], *, has_sources: bool
) -> StepGraph:
    step = _make_function(source, kind, repeats)
    try:
        with torch.set_grad_enabled(kind == "step"), training_mode(source.model, kind == "step"):
            return trace(step, source.model, inputs, has_sources=has_sources, repeats=repeats)
    except (MonographError, BlocksDiffer):
        raise
    except Exception as error:
        if not is_of_model(error):
            raise
        raise explain_failure(error) from error


@contextmanager
def training_mode(model: Model, is_training: bool) -> Iterator[None]:
    """Inside, the model's modules are in training or in evaluation mode."""
    before = model.training
    model.train(is_training)
    try:
        yield
    finally:
        model.train(before)


def _make_function(source: StepSource, kind: GraphKind, repeats: Sequence[BlockRepeat]) -> StepFunction:
    settings: dict[str, Any] = {
        "compute_dtype": source.compute_dtype,
        "reduce_dtype": source.reduce_dtype,
        "chunks": find_source_chunks(source) if source.overlap.strategy == "trace" else None,
        "skipped": find_skipped_blocks(source.model, repeats),
    }
    if source.stage is not None:
        make = make_stage_step if kind == "step" else make_stage_forward
        return make(source.model, source.table, source.stage, **settings)
    if kind == "step":
        return make_step(source.model, source.table, probe=source.probe, **settings)
    return make_forward(source.model, source.table, **settings)
