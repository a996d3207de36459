"""Overlap one chunk's all_to_all with another chunk's compute."""

from collections.abc import Sequence

from torch.fx import Node

from monograph.errors import ConfigError
from monograph.graph.cost import find_node_costs
from monograph.graph.facts import Facts
from monograph.graph.likely_sizes import LikelySizes
from monograph.graph.query import is_backward, is_compute
from monograph.graph.signature import OutputKind
from monograph.graph.step_graph import StepGraph
from monograph.graph.tags import tag_of
from monograph.log import get_log
from monograph.passes.base import Pass
from monograph.passes.overlap.overlap_experts_options import OverlapExpertsConfig
from monograph.passes.overlap.overlap_plan import find_ancestors, plan_overlap
from monograph.passes.overlap.simulate import MICROSECOND, SimulatedSchedule, is_exchange
from monograph.plurals import counted

log = get_log("overlap")


class OverlapExperts(Pass):
    """Overlap one chunk's all_to_all with another's compute.

    Before:  d0 = exchange(x0);  d1 = exchange(x1);  y0 = experts(wait(d0));  y1 = experts(wait(d1));  ...
    After:   d0 = exchange(x0);  x1 = ...;  d1 = exchange(x1);  y0 = experts(wait(d0));  c0 = exchange(y0);
             y1 = experts(wait(d1));  c1 = exchange(y1);  z0 = wait(c0);  next block of z0;  z1 = wait(c1);  ...
    Why:     an exchange that compute waits for leaves the device idle. Nodes only move; what each computes stays. The
             order is planned with estimates for `--machine`, and kept only if they find it faster.
    """

    Config = OverlapExpertsConfig

    def skip(self, facts: Facts) -> str:
        return "no modules are chunked" if facts.chunking is None else ""

    def reads_machine(self, facts: Facts) -> bool:
        return True

    def run(self, graph: StepGraph, facts: Facts) -> str:
        if not any(is_backward(node) for node in graph.nodes):
            return "evaluation is not chunked"
        plan = self.plan(graph, facts)
        for line in describe_plan(plan):
            log.debug("%s", line)
        apply_order(graph, plan.order)
        total = sum(window.seconds for window in plan.windows)
        hidden = 100 * (1 - plan.exposed_seconds / total) if total else 100.0
        return (
            f"{counted(len(plan.windows), 'all_to_all')}: {total / MICROSECOND:.0f} us estimated, "
            f"{plan.exposed_seconds / MICROSECOND:.0f} us of them exposed ({hidden:.0f} % hidden)"
        )

    def plan(self, graph: StepGraph, facts: Facts) -> SimulatedSchedule:
        """The order, and what it costs by the model."""
        if not any(is_exchange(node) and tag_of(node).chunk is not None for node in graph.nodes):
            raise ConfigError(
                "overlap_experts runs, and no chunk has an all_to_all",
                why="there is nothing to hide",
                do="--passes.off overlap_experts, or more ranks in parallelism.expert_parallel_degree",
            )
        sizes = LikelySizes(graph.module.graph)
        costs = find_node_costs(graph.module.graph, sizes, facts)
        programs = find_programs(graph, facts.programs)
        return plan_overlap(graph.nodes, costs, sizes, self.config.max_extra_bytes, programs)


def find_programs(graph: StepGraph, count: int) -> dict[Node, int]:
    """The program of every node where a pipeline stage runs as several: forward, then what the gradient of its carry
    depends on, then the rest; empty where all is one program."""
    if count == 1:
        return {}
    pairs = zip(graph.outputs, graph.results, strict=True)
    ends = [node for spec, node in pairs if spec.kind is OutputKind.CARRY_GRADIENT and node is not None]
    first = find_ancestors(ends) if count > 2 else set(graph.nodes)
    backward = [node for node in graph.nodes if is_compute(node) and is_backward(node)]
    found = {node: 1 if node in first else 2 for node in backward}
    return found | {graph.module.graph.output_node(): count}


def describe_plan(plan: SimulatedSchedule) -> list[str]:
    """The plan as a person reads it: a line for every exchange."""
    return [window.text() for window in plan.windows]


def apply_order(graph: StepGraph, order: Sequence[Node]) -> None:
    """Put the nodes in this order; those that stand right already are left alone."""
    if graph.nodes == list(order):
        return
    end = graph.module.graph.output_node()
    for node in order:
        if node is not end:
            end.prepend(node)
