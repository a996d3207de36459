"""Graphs for tests of passes: a tiny model on a fake mesh, captured once, handed out as copies."""

import functools
import tempfile
from pathlib import Path

import torch

from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.passes.base import Pass
from monograph.passes.check import clone_graph
from monograph.passes.compile.mark_regions_options import MarkRegionsConfig
from monograph.passes.config import PassesConfig
from monograph.passes.memory.offload_activations_options import OffloadActivationsConfig
from monograph.passes.runner import build_passes
from tests.execute.updates import CPU, small
from tests.kit.capture import prepare

ASKED = PassesConfig(
    offload_activations=OffloadActivationsConfig(budget_gib=1.0, min_bytes=64),
    on=(
        *("narrow_gradients", "merge_matmuls", "cache_cast_weights", "fuse_swiglu_epilogue"),
        *("quantize_matmuls", "gather_float8", "cache_float8_weights"),
    ),
    mark_regions=MarkRegionsConfig(regions=("blocks",)),
)
"""Options under which every pass but compile_whole has something to do."""


def compiles(name: str) -> bool:
    """Whether a pass calls a compiler."""
    return name.startswith("compile_")


@functools.cache
def _capture(model: str, mesh: Mesh, rank: int, changes: tuple, is_forward: bool = False) -> tuple[StepGraph, Facts]:
    degrees = {name: getattr(mesh, name) for name in ("tp", "ep", "etp") if getattr(mesh, name) > 1}
    changed = {"compile.mode": "graph", "parallelism.fsdp": "graph", **dict(changes)}
    with tempfile.TemporaryDirectory() as folder:
        config = small(model, Path(folder), changed, **degrees)
    with fake_groups(mesh, rank, CPU) as groups:
        shape = (config.training.local_batch_size, config.training.seq_len)
        batch = {name: torch.zeros(shape, dtype=torch.int64) for name in ("tokens", "labels")}
        prepared = prepare(config, groups, batch, valid_tokens=7)
        return prepared.capture("evaluation" if is_forward else "step"), prepared.facts


def capture_small(model: str, mesh: Mesh, rank: int = 0, **changes) -> tuple[StepGraph, Facts]:
    """A fresh copy of the captured step of a tiny model, and what passes may know about its mesh."""
    graph, facts = _capture(model, mesh, rank, tuple(changes.items()))
    return clone_graph(graph), facts


def capture_evaluation(model: str, **changes) -> tuple[StepGraph, Facts]:
    """The same for the forward alone, on one rank."""
    graph, facts = _capture(model, Mesh(), 0, tuple(changes.items()), is_forward=True)
    return clone_graph(graph), facts


def make_pass(name: str, config: PassesConfig | None = None) -> Pass:
    """One pass with the options of a config."""
    (found,) = [each for each in build_passes(config or PassesConfig()) if each.name() == name]
    return found
