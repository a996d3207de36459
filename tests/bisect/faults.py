"""Faults planted in passes: each changes numbers in one place, and the graph checks have no reason to refuse it."""

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch.fx import Node

from monograph.compat.ops import ATEN
from monograph.config.references import load_reference
from monograph.execute.cast_weight_cache import CastWeightCache
from monograph.execute.outputs import StepOutputBuffers
from monograph.graph.edit import call_after
from monograph.graph.query import alias_of, is_backward, is_compute, value_of
from monograph.graph.signature import OutputSpec
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.kernels.norm import ADD_NORM, NORM
from monograph.passes.order import ORDER

Corrupt = Callable[[StepGraph, str], Node]
"""Changes a graph that a pass has just left; returns the node whose value is wrong."""


@dataclass(frozen=True)
class Fault:
    """What is wrong in a pass, and the run it shows in."""

    corrupt: Corrupt
    model: str = "llama3"
    flags: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1
    degrees: dict[str, Any] = field(default_factory=dict)
    tolerance: float = 1e-5


def scale(choose: Callable[[Node, str], bool], factor: float = 1.001) -> Corrupt:
    """One value is too large, by default by a thousandth: the middle one of those that can be chosen."""

    def corrupt(graph: StepGraph, name: str) -> Node:
        chosen = [node for node in graph.nodes if is_compute(node) and is_float(node) and choose(node, name)]
        assert chosen, f"{name} left nothing to corrupt"
        node = chosen[len(chosen) // 2]
        wrong = call_after(node.graph, node, ATEN.mul.Tensor, (node, factor), replace(tag_of(node), made_by=name))
        for user in list(node.users):
            if user is not wrong:
                user.replace_input_with(node, wrong)
        return wrong

    return corrupt


def is_float(node: Node) -> bool:
    value = value_of(node)
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.ndim >= 2


def is_made(node: Node, name: str) -> bool:
    """A result of its own that the pass computed."""
    return tag_of(node).made_by == name and alias_of(node) is None


def in_forward(op: Any) -> Callable[[Node, str], bool]:
    """A call of this op in the forward of block 1: finished gradients may not be scaled, the graph checks would say."""
    return lambda node, _: node.target is op and tag_of(node).block == 1 and not is_backward(node)


def other_part(graph: StepGraph, name: str) -> Node:
    """A merged matmul is split in another order: its users read a neighbour's part of the same shape."""
    for node in graph.nodes:
        parts = [user for user in node.users if user.target is operator.getitem]
        if tag_of(node).made_by != name if is_compute(node) else True:
            continue
        shapes = [value_of(part).shape for part in parts]
        for index in range(len(parts) - 1):
            if shapes[index] == shapes[index + 1] and tag_of(parts[index]).block == 1:
                first, second = parts[index : index + 2]
                first.args, second.args = (node, second.args[1]), (node, first.args[1])
                return first
    raise AssertionError(f"{name} left nothing to corrupt")


def other_eps(graph: StepGraph, name: str) -> Node:
    """A fused norm adds another number than the norm it replaced."""
    node = next(n for n in graph.nodes if n.target in (ADD_NORM, NORM) and tag_of(n).made_by == name)
    node.args = (*node.args[:-1], 0.01)
    return node


FUSED = {"model.kernels": "fused"}
FAST = {"compile.numerics": "fast"}
TWO = {"ranks": 2, "degrees": {}}
FAULTS: dict[str, Fault] = {
    "remove_no_ops": Fault(scale(in_forward(ATEN.mm.default))),
    "remove_dead_code": Fault(scale(lambda node, _: node.target is ATEN.add.Tensor)),
    "elide_trivial_collectives": Fault(scale(in_forward(ATEN.add.Tensor))),
    "recompute": Fault(scale(is_made)),
    "merge_matmuls": Fault(other_part, flags=FAST),
    "narrow_gradients": Fault(
        scale(in_forward(ATEN.mm.default), 4.0), flags=FAST | {"training.compute_dtype": "bfloat16"}, tolerance=0.1
    ),
    "fuse_kernels": Fault(other_eps, flags=FUSED),
    "fuse_swiglu_epilogue": Fault(scale(is_made), flags=FAST | FUSED),
    "offload_activations": Fault(scale(is_made), flags={"passes.offload_activations.budget_gib": 1e-3}),
    "dedupe_all_gathers": Fault(scale(in_forward(ATEN.mm.default)), model="qwen3", **TWO),
    "bucket_collectives": Fault(scale(in_forward(ATEN.mm.default)), **TWO),
    "prefetch_all_gathers": Fault(scale(in_forward(ATEN.mm.default)), model="deepseek_v3", **TWO),
    "chunk_experts": Fault(
        scale(is_made),
        model="qwen3_moe",
        flags={"compile.expert_overlap.strategy": "graph", "training.local_batch_size": 4},
        ranks=2,
        degrees={"ep": 2},
    ),
}
"""By the pass they are planted in."""


@contextmanager
def planted(name: str, rank: int | None = None) -> Iterator[list[str]]:
    """The pass, wrong, wherever it runs inside; the list gets the names of the nodes that are. `rank`: only there."""
    kind = load_reference(ORDER[name].reference)
    run, wrong = kind.run, list[str]()

    def run_wrongly(self: Any, graph: StepGraph, facts: Any) -> str:
        note = run(self, graph, facts)
        wrong.append(FAULTS[name].corrupt(graph, name).name)
        return str(note)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "run", run_wrongly)
        yield wrong


@contextmanager
def stale_casts() -> Iterator[None]:
    """Cast copies of weights that are never refreshed after the first step."""
    refresh = CastWeightCache.refresh
    done: set[int] = set()

    def refresh_once(self: CastWeightCache) -> None:
        if id(self) not in done:
            refresh(self)
        done.add(id(self))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CastWeightCache, "refresh", refresh_once)
        patch.setattr(CastWeightCache, "find_copy", lambda self, slot: None)
        yield


@contextmanager
def wrong_gradient(name: str) -> Iterator[None]:
    """One gradient of the captured step is wrong by the time it is added up."""
    take = StepOutputBuffers.take

    def take_wrongly(self: StepOutputBuffers, spec: OutputSpec, value: torch.Tensor) -> None:
        take(self, spec, value * 1.001 if spec.name == name else value)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StepOutputBuffers, "take", take_wrongly)
        yield
