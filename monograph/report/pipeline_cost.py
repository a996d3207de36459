"""What a pipeline stage costs, estimated from its captured graph: seconds and bytes of its parts."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from torch.fx import Node

from monograph.execute.pipeline.partition import StagePart, count_kept_bytes, partition
from monograph.graph.cost import find_node_costs
from monograph.graph.facts import Facts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.memory import find_memory
from monograph.graph.query import value_of
from monograph.graph.signature import PARAMETERS, OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.timeline import find_timeline
from monograph.parallel.pipeline.simulate import StageCost


def estimate_stage(graph: StepGraph, facts: Facts, *, span: int, state_ratio: float) -> StageCost:
    """The cost of one micro-batch; `span` is how many ranks apart neighbours of the pipeline are, and the optimizer's
    state is `state_ratio` times the parameters."""
    inside = graph.module.graph
    sizes = LikelySizes(inside)
    seconds = find_node_costs(inside, sizes, facts).seconds
    parts = partition(graph)
    saved = count_kept_bytes(graph, parts.forward.keeps)
    for_weights = count_kept_bytes(graph, parts.weight_grad.reads)
    sent = sum(sizes.bytes(value_of(node)) for node in find_sent(graph))
    memory = find_memory(graph, sizes)
    inputs = sum(sizes.bytes(value_of(node)) for node in graph.placeholders)
    return StageCost(
        forward_seconds=find_seconds(parts.forward, seconds),
        input_grad_seconds=find_seconds(parts.input_grad, seconds),
        weight_grad_seconds=find_seconds(parts.weight_grad, seconds),
        transfer_seconds=facts.machine.collective_seconds(sent, span, ranks=2) if sent else 0.0,
        fixed_bytes=int((2 + state_ratio) * count_parameter_bytes(graph, sizes)),  # 2: parameters and gradients
        saved_bytes=saved,
        saved_for_weights_bytes=for_weights,
        work_bytes=max(0, memory.peak_bytes - inputs - saved),
        sent_bytes=int(sent),
    )


def find_seconds(part: StagePart, seconds: dict[Node, float]) -> float:
    """How long a part takes, with the collectives that its compute waits for."""
    nodes: Any = SimpleNamespace(nodes=part.nodes)
    return find_timeline(nodes, seconds).total_seconds


def find_sent(graph: StepGraph) -> Sequence[Node]:
    """What the stage hands on."""
    pairs = zip(graph.outputs, graph.results, strict=True)
    return [node for spec, node in pairs if spec.kind is OutputKind.CARRY and node is not None]


def count_parameter_bytes(graph: StepGraph, sizes: LikelySizes) -> int:
    """Bytes of this rank's shards."""
    pairs = zip(graph.placeholders, graph.inputs, strict=True)
    return sum(sizes.bytes(value_of(node)) for node, spec in pairs if spec.kind in PARAMETERS)
