"""The stages of a pipeline as one graph: each reads what its neighbours hand on, and a step is one run of all of them.

Sends and receives move values and change none, so that the order of a schedule decides when a stage runs, not what it
computes; schedules are checked for themselves (parallel/pipeline/check.py).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from monograph.execute.pipeline.build import StageSource
from monograph.graph.signature import InputKind, InputSpec, OutputKind, OutputSpec
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import find_tag, set_tag
from monograph.parallel.mesh import Mesh

MakeStage = Callable[[StageSource], StepGraph]
_GIVEN = {InputKind.CARRY: (OutputKind.CARRY, -1), InputKind.CARRY_GRADIENT: (OutputKind.CARRY_GRADIENT, 1)}
"""Where an input of a stage comes from: an output of the stage before it, or of the one after it."""


def find_stage_mesh(mesh: Mesh) -> Mesh:
    """The ranks of one stage: every stage has the same axes, and no collective of a graph leaves its stage."""
    return replace(mesh, pp=1)


def join_stages(stages: Sequence[StepGraph], tied: Collection[str] = ()) -> StepGraph:
    """One graph of all stages. Metrics are added up over them, and gradients of `tied` slots, the first stage first."""
    joined = _Joined(stages, tied)
    joined.copy_all()
    return joined.finish()


class _Joined:
    """A graph into which the nodes of all stages are copied as soon as their operands are there."""

    def __init__(self, stages: Sequence[StepGraph], tied: Collection[str]) -> None:
        self.stages, self.tied = stages, tied
        self.graph, self.root = Graph(), nn.Module()
        self.inputs: dict[tuple[InputKind, str], tuple[InputSpec, Node]] = {}
        self.copies: list[dict[Node, Node]] = [{} for _ in stages]
        self.results: list[Mapping[tuple[OutputKind, str], Node]] = []
        for number, stage in enumerate(stages):
            self.root.add_module(f"stage_{number}", stage.module)
            pairs = zip(stage.outputs, stage.results, strict=True)
            self.results.append({(spec.kind, spec.name): node for spec, node in pairs if node is not None})

    def copy_all(self) -> None:
        """Copy forwards from the first stage to the last, and backwards in the other order."""
        waiting: list[list[Node]] = []
        for number, stage in enumerate(self.stages):
            specs = dict(zip(stage.placeholders, stage.inputs, strict=True))
            for node, spec in specs.items():
                if spec.kind not in _GIVEN:
                    self.copies[number][node] = self._find_input(node, spec)
            waiting.append([node for node in stage.nodes if node not in self.copies[number] and node.op != "output"])
        order = [*range(len(self.stages)), *reversed(range(len(self.stages)))]
        while any(waiting):
            before = sum(map(len, waiting))
            for number in order:
                waiting[number] = [node for node in waiting[number] if not self._copy(number, node)]
            if sum(map(len, waiting)) == before:
                node = next(node for nodes in waiting for node in nodes)
                raise ValueError(f"no stage hands on what {node.name} reads")

    def _find_input(self, node: Node, spec: InputSpec) -> Node:
        """An input of the whole step, which several stages may read."""
        key = spec.kind, spec.name
        if key not in self.inputs:
            copy = self.graph.node_copy(node)
            copy.target = copy.name
            self.inputs[key] = spec, copy
        return self.inputs[key][1]

    def _copy(self, number: int, node: Node) -> bool:
        """Copy a node whose operands are there; False where one is not."""
        copies = self.copies[number]
        if node.op == "placeholder":
            stage = self.stages[number]
            spec = stage.inputs[stage.placeholders.index(node)]
            kind, step = _GIVEN[spec.kind]
            giver = self.results[number + step].get((kind, spec.name))
            found = None if giver is None else self.copies[number + step].get(giver)
            if found is not None:
                copies[node] = found
            return found is not None
        if not all(operand in copies for operand in node.all_input_nodes):
            return False
        copies[node] = self.graph.node_copy(node, copies.__getitem__)
        if node.op == "get_attr":
            copies[node].target = f"stage_{number}.{node.target}"
        return True

    def finish(self) -> StepGraph:
        """The outputs of a step: the last stage's loss, gradients and metrics of all stages."""
        found: dict[tuple[OutputKind, str], Node] = {}
        for number, results in enumerate(self.results):
            for key, node in results.items():
                is_last = number == len(self.stages) - 1
                if key[0] in _HANDED_ON or (key[0] is OutputKind.LOSS and not is_last):
                    continue
                copy = self.copies[number][node]
                if key not in found:
                    found[key] = copy
                elif key[0] is OutputKind.METRIC or key[1] in self.tied:
                    found[key] = self._add(found[key], copy)
        self.graph.output(list(found.values()))
        outputs = tuple(OutputSpec(kind=kind, name=name) for kind, name in found)
        inputs = tuple(spec for spec, _ in self.inputs.values())
        return StepGraph(GraphModule(self.root, self.graph), inputs, outputs)

    def _add(self, first: Node, second: Node) -> Node:
        total = self.graph.call_function(torch.ops.aten.add.Tensor, (first, second))
        total.meta["val"] = first.meta.get("val")
        tag = find_tag(second)
        if tag is not None:
            set_tag(total, tag)
        return total


_HANDED_ON = frozenset(kind for kind, _ in _GIVEN.values())
