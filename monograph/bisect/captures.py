"""Captured steps that no pass has touched, next to each other and next to an eager step."""

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from monograph.bisect.differences import find_differences
from monograph.bisect.nodes import find_node_by_tags
from monograph.bisect.replay import replay, replay_all
from monograph.bisect.search import Finding, find_base
from monograph.bisect.stages import CAPTURE, PassedGraph
from monograph.graph.inputs import StepInputs
from monograph.graph.signature import OutputKind
from monograph.passes.overlap.chunk_experts import ChunkExperts
from monograph.train.config import TrainerConfig


def sum_gradients(stage: PassedGraph, micro: Sequence[StepInputs]) -> dict[str, Tensor]:
    """The gradients of a graph, added up over micro-batches as a step does it."""
    total: dict[str, Tensor] = {}
    for inputs in micro:
        for name, value in replay(stage.graph, inputs).items():
            total[name] = total[name] + value if name in total else value
    return {name: value for name, value in total.items() if name.startswith(OutputKind.GRADIENT.value)}


def find_restart(configs: Iterable[TrainerConfig]) -> str:
    """The pass after which numbers are others by design, on both sides: modules that are run chunk by chunk round
    differently from whole ones, and the step that one side cuts by a pass the other one captures or runs in chunks."""
    left, right = (config.compile.expert_overlap for config in configs)
    is_same = left.is_on and right.is_on and left.replace(strategy="trace") == right.replace(strategy="trace")
    return ChunkExperts.name() if is_same else ""


def compare_with_modules(
    stages: Sequence[PassedGraph],
    micro: Sequence[StepInputs],
    computed: Mapping[str, Tensor],
    *,
    tolerance: float,
    restart: str,
) -> Finding | None:
    """Whether the gradients of a captured step are those that eager modules computed."""
    base = find_base(stages, restart)
    wrong = find_differences(sum_gradients(stages[base], micro), computed, tolerance)
    if not wrong:
        return None
    if base:
        return Finding("pass", restart, "its chunks differ from those of the eager step", wrong)
    return Finding(CAPTURE, "the captured graph, before any pass, differs from the eager step", "", wrong)


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
