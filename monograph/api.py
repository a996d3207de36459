"""The library's form of what the commands do: capture a step, improve it by passes, verify a plan."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch.fx import Node

from monograph.capture.capture import capture as capture_graph
from monograph.config.configurable import check_config
from monograph.execute.device import deterministic_kernels, use_device
from monograph.execute.facts import make_facts
from monograph.graph.cost import Cost, measure
from monograph.graph.facts import Facts
from monograph.graph.step_graph import StepGraph
from monograph.parallel.groups import Groups, fake_groups, joined_groups
from monograph.passes.runner import PassRecord, build_passes
from monograph.passes.runner import run_passes as run_all
from monograph.run import build_source, make_example
from monograph.train.config import TrainerConfig
from monograph.train.layout import count_ranks, plan_run_mesh
from monograph.verify.run import verify as verify_on_ranks
from monograph.verify.verdict import Verdict


@dataclass(frozen=True)
class CapturedStep:
    """A training step as a graph, and what passes may know about the run it belongs to.

    `graph` is the StepGraph itself: passes change it in place.
    """

    config: TrainerConfig
    graph: StepGraph
    facts: Facts
    records: Sequence[PassRecord] = ()
    """What each pass did, in order."""

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes in the order they run; `mg.tag_of(node)` says where each comes from."""
        return self.graph.nodes

    def text(self, *, folded: bool = True) -> str:
        """The graph, one node a line; equal blocks are printed once unless `folded` is False."""
        return self.graph.text(folded=folded)

    def cost(self) -> Cost:
        """FLOPs, bytes, collectives, and the peak of memory, estimated for the machine of the run."""
        return measure(self.graph, self.facts)


def capture(config: TrainerConfig, *, ranks: int = 0) -> CapturedStep:
    """The training step of a run as rank 0 of its mesh captures it, before any pass; needs no GPU and no other ranks.

    `ranks` is the size of the mesh; 0 takes what the degrees in `config.parallelism` multiply to.
    """
    check_config(config)
    mesh = plan_run_mesh(config, ranks or count_ranks(config.parallelism))
    with fake_groups(mesh, 0, use_device(config.debug.device)) as groups:
        source, settings = build_source(config, groups)
        graph = capture_graph(source, make_example(config, source), has_sources=True)
        return CapturedStep(config, graph, make_facts(source.table, groups, settings))


def run_passes(step: CapturedStep) -> CapturedStep:
    """The same step after the passes that its configuration asks for; each is checked and recorded."""
    config = step.config
    passes = build_passes(config.passes, config.compile.numerics)
    return replace(step, records=run_all(step.graph, passes, step.facts))


def verify(config: TrainerConfig, *, steps: int = 2) -> Verdict | None:
    """Whether the run computes what one device computes, module by module, as one of the ranks a launcher started.

    One process is a mesh of one. The verdict is on rank 0; None elsewhere.
    """
    with _joined(config) as groups:
        return verify_on_ranks(config, groups, steps=steps)


@contextmanager
def _joined(config: TrainerConfig) -> Iterator[Groups]:
    check_config(config)
    mesh = plan_run_mesh(config, int(os.environ.get("WORLD_SIZE", "1")))
    device, limit = use_device(config.debug.device), config.parallelism.timeout_seconds
    with (
        deterministic_kernels(config.debug.deterministic),
        joined_groups(mesh, device, timeout_seconds=limit, shares_gpus=config.debug.share_gpus) as groups,
    ):
        yield groups
