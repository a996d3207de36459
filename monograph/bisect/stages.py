"""The step after every pass, as graphs that can be run one against the other."""

from collections.abc import Sequence
from dataclasses import dataclass

from monograph.capture.capture import capture
from monograph.capture.source import StepSource
from monograph.graph.facts import Facts
from monograph.graph.inputs import StepInputs
from monograph.graph.step_graph import StepGraph, copy_graph
from monograph.passes.base import Pass
from monograph.passes.runner import PassFailed, PassRecord, run_passes
from monograph.plurals import counted

CAPTURE = "capture"
"""The name of the first stage."""


@dataclass(frozen=True)
class PassedGraph:
    """The graph that one pass left behind."""

    name: str
    note: str
    graph: StepGraph


def build_stages(source: StepSource, inputs: StepInputs, facts: Facts, passes: Sequence[Pass]) -> list[PassedGraph]:
    """The captured graph, then the graph after each pass that ran, with the source lines of their nodes."""
    graph = capture(source, inputs, has_sources=True)
    stages = [PassedGraph(CAPTURE, counted(len(graph.nodes), "node"), copy_graph(graph))]
    seen: list[str] = []

    def watch(record: PassRecord, graph: StepGraph) -> None:
        seen.append(record.name)
        if record.status == "ran":
            stages.append(PassedGraph(record.name, record.note, copy_graph(graph)))

    try:
        run_passes(graph, passes, facts, watch=watch, is_measured=False)
    except PassFailed:
        raise
    except Exception as error:
        name = passes[len(seen)].name() if len(seen) < len(passes) else CAPTURE
        raise PassFailed(
            f"pass {name} failed, before any number was computed",
            why=f"{type(error).__name__}: {error}",
            do=f"--passes.off {name} runs the step without it",
        ) from error
    return stages
