"""Small graphs written by hand, with the text a pass is shown before and leaves after."""

import textwrap

from monograph.annotate import Direction
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from tests.kit.by_hand import ByHand
from tests.kit.pipelines import make_pass

BACKWARD = Direction.BACKWARD

__all__ = ["BACKWARD", "ByHand", "check_text", "run"]


def run(name, graph: StepGraph, config=None, **facts) -> str:
    """Run one pass on a graph; returns what it says about it."""
    return make_pass(name, config).run(graph, Facts(**facts))


def check_text(graph: StepGraph, wanted: str) -> None:
    """The graph reads as written, line by line."""
    assert graph.text().strip() == textwrap.dedent(wanted).strip()
