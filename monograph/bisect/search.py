"""Which pass, then which node, changed a number: a binary search over the graphs that passes left behind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from monograph.bisect.differences import ValueDifference, find_differences
from monograph.bisect.nodes import NodeDifference, find_node
from monograph.bisect.replay import replay, replay_all
from monograph.bisect.stages import PassedGraph
from monograph.graph.inputs import StepInputs

Agree = Callable[[bool], bool]
"""Whether something holds on any rank: all of them must take the same turns, because a replay has collectives."""


@dataclass(frozen=True)
class Finding:
    """What changed a number, on one rank."""

    kind: str
    """pass, capture, optimizer, execution, start or schedule."""
    name: str
    """The pass, or what else it was."""
    note: str = ""
    outputs: dict[str, ValueDifference] = field(default_factory=dict)
    """Outputs of the step that differ, in order."""
    node: NodeDifference | None = None
    tried: tuple[str, ...] = ()
    """Passes after which the graph was replayed on the way."""
    stage: int | None = None
    """Of a pipeline: the stage whose graph it is."""


EXECUTION = Finding(
    "execution",
    "the program",
    "graphs agree when replayed node by node: the difference is in how they execute (CUDA graphs, caches, "
    "accumulation, memory reuse)",
)


def find_pass(
    stages: Sequence[PassedGraph], inputs: StepInputs, *, tolerance: float, agree: Agree
) -> tuple[int, list[str]] | None:
    """The index of a stage whose outputs differ from the first stage's while those of the stage before it do not."""
    expected = replay(stages[0].graph, inputs)
    tried: list[str] = []

    def differs(index: int) -> bool:
        tried.append(stages[index].name)
        return agree(bool(find_differences(expected, replay(stages[index].graph, inputs), tolerance)))

    low, high = 0, len(stages) - 1
    if high == 0 or not differs(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if differs(middle) else (middle, high)
    return high, tried


def find_base(stages: Sequence[PassedGraph], restart: str) -> int:
    """The index of the graph whose numbers those after it should have: that of the pass `restart`, or the captured."""
    return next((index for index, each in enumerate(stages) if each.name == restart), 0)


def blame_passes(
    stages: Sequence[PassedGraph], inputs: StepInputs, *, tolerance: float, agree: Agree, restart: str = ""
) -> Finding | None:
    """The pass that changed the outputs and the node where it shows first; None when no pass did.

    The pass `restart` changes them by design: those before it are compared with the captured graph, those after it
    with the graph that it left.
    """
    base = find_base(stages, restart)
    for part in [stages[:base], stages[base:]] if base else [stages]:
        found = find_pass(part, inputs, tolerance=tolerance, agree=agree)
        if found is not None:
            return locate(part, *found, inputs, tolerance=tolerance)
    return None


def locate(
    stages: Sequence[PassedGraph], index: int, tried: Sequence[str], inputs: StepInputs, *, tolerance: float
) -> Finding:
    """What a pass changed: the outputs, and the first node."""
    before, after = stages[index - 1], stages[index]
    (expected, old), (outputs, new) = (replay_all(each.graph, inputs) for each in (before, after))
    differences = find_differences(expected, outputs, tolerance)
    node = find_node(before.graph, after.graph, (old, new), tolerance=tolerance)
    return Finding("pass", after.name, after.note, differences, node, tuple(tried))
