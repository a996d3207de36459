"""Captured steps that no pass has touched, next to each other and next to an eager step."""

from collections.abc import Sequence

from torch import Tensor

from monograph.bisect.differences import find_differences
from monograph.bisect.nodes import find_node_by_tags
from monograph.bisect.replay import replay, replay_all
from monograph.bisect.search import Finding
from monograph.bisect.stages import CAPTURE, PassedGraph
from monograph.graph.inputs import StepInputs
from monograph.graph.signature import OutputKind


def sum_gradients(stage: PassedGraph, micro: Sequence[StepInputs]) -> dict[str, Tensor]:
    """The gradients of a graph, added up over micro-batches as a step does it."""
    total: dict[str, Tensor] = {}
    for inputs in micro:
        for name, value in replay(stage.graph, inputs).items():
            total[name] = total[name] + value if name in total else value
    return {name: value for name, value in total.items() if name.startswith(OutputKind.GRADIENT.value)}


def compare_captures(captured: list[PassedGraph], inputs: list[StepInputs], *, tolerance: float) -> Finding | None:
    """Two captured steps that no pass has touched: the first node that differs, by module and op."""
    (expected, old), (outputs, new) = (
        replay_all(each.graph, given) for each, given in zip(captured, inputs, strict=True)
    )
    differences = find_differences(expected, outputs, tolerance)
    if not differences:
        return None
    node = find_node_by_tags(captured[0].graph, captured[1].graph, (old, new), tolerance=tolerance)
    return Finding(CAPTURE, "the captured steps differ before any pass", "", differences, node)
