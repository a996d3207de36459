"""Graph mode on random models, meshes and passes: `make test-fuzz`, or `python -m tests.steps.graph_fuzz --seed 17`.

Every seed is captured as two ranks of its mesh under the fake process group: all passes run with their checks, both
texts are equal, the graph file can be written and read, and no collective is left over a group of one rank. One rank is
then run against eager mode, bit for bit. Every fifth seed runs on real ranks, in turn against eager mode and through
`verify`.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import torch

from monograph.capture.capture import GraphKind
from monograph.errors import ConfigError
from monograph.graph.facts import Facts
from monograph.graph.file import graph_from_data, graph_to_data
from monograph.graph.query import group_of, is_launch
from monograph.graph.step_graph import StepGraph
from monograph.parallel.groups import fake_groups
from monograph.passes.runner import OptimizedGraph
from monograph.train.config import TrainerConfig
from monograph.train.layout import plan_run_mesh
from tests.kit.capture import prepare
from tests.kit.fuzzing import REFUSED, Failed, run_fuzzer
from tests.kit.ranks import pool
from tests.steps.graph_draw import Drawn, draw
from tests.steps.graph_fuzz_ranks import compare_modes
from tests.verify.on_ranks import verify_on_ranks

CPU = torch.device("cpu")
PARTS: tuple[GraphKind, ...] = ("step", "evaluation")
RANKS_EVERY = 5
VERIFY_EVERY = 10
PATIENCE_SECONDS = 900.0


def check_seed(seed: int, folder: Path) -> Iterator[str]:
    """All checks of one seed; yields what was checked, for the counts."""
    drawn = draw(seed)
    try:
        config = drawn.graph(folder)
        mesh = plan_run_mesh(config, drawn.mesh.world_size)
    except ConfigError as error:
        yield from refused(error)
        return
    if mesh != drawn.mesh:
        raise Failed(f"{mesh} was planned for {drawn.mesh}")
    try:
        yield from drawn.labels()
        yield from check_captures(drawn, config)
        if drawn.mesh.world_size == 1 or seed % RANKS_EVERY == 0:
            yield from check_run(drawn, folder, is_verified=drawn.mesh.world_size > 1 and seed % VERIFY_EVERY == 0)
    except ConfigError as error:
        yield from refused(error)
    except Exception as error:
        error.add_note(drawn.command("inspect", folder) + " --out inspected")
        error.add_note(drawn.command("verify", folder))
        raise


def refused(error: ConfigError) -> Iterator[str]:
    """A refusal has a reason; a step that is refused late counts like one that is refused at once."""
    if not error.what or not (error.why or error.do):
        raise Failed(f"refused without a reason: {error}")
    yield REFUSED
    yield f"refused: {error.what.split(' ')[0]}"


def check_captures(drawn: Drawn, config: TrainerConfig) -> Iterator[str]:
    """The graphs of two fake ranks."""
    texts = {}
    for rank in sorted({0, drawn.mesh.world_size - 1}):
        with fake_groups(drawn.mesh, rank, CPU) as groups:
            prepared = prepare(config, groups)
            for part in PARTS if rank == 0 else PARTS[:1]:
                captured = prepared.capture_and_pass(part)
                check_file(captured.graph)
                check_trivial(captured, prepared.facts)
                texts[rank, part] = captured.graph.text(folded=False)
    yield "captured"
    if drawn.mesh.world_size > 1:
        if texts[0, "step"] != texts[drawn.mesh.world_size - 1, "step"]:
            raise Failed("two ranks captured different graphs")
        yield "captured alike on two ranks"


def check_file(graph: StepGraph) -> None:
    """A graph that was written and read is the same graph."""
    data = graph_to_data(graph)
    read = graph_from_data(json.loads(json.dumps(data)), {})
    if read.text(folded=False) != graph.text(folded=False) or graph_to_data(read) != data:
        raise Failed("the graph file holds another graph")


def check_trivial(captured: OptimizedGraph, facts: Facts) -> None:
    """No collective over one rank is left by the pass that removes them."""
    nodes = [node for node in captured.graph.nodes if is_launch(node)]
    left = [node.name for node in nodes if facts.group_sizes[group_of(node)] == 1]
    ran = [record.name for record in captured.records if record.status == "ran"]
    if left and "elide_trivial_collectives" in ran:
        raise Failed(f"collectives over one rank are left: {left[:3]}")


def check_run(drawn: Drawn, folder: Path, *, is_verified: bool) -> Iterator[str]:
    """The verdict of `verify`; or the bits of eager mode, where the passes promise them."""
    world, config = drawn.mesh.world_size, drawn.graph(folder)
    if is_verified or not drawn.has_same_bits:
        verdict = pool.run(world, verify_on_ranks, config, timeout_seconds=PATIENCE_SECONDS)[0]
        if not verdict.is_equal:
            raise Failed(f"verify, step {verdict.step}: {verdict.blame}")
        yield "verified against one device"
        return
    try:
        given = (config, drawn.eager(folder))
    except ConfigError as error:
        raise Failed(f"eager mode refuses what graph mode takes: {error}") from error
    for rank, differing in enumerate(pool.run(world, compare_modes, *given, timeout_seconds=PATIENCE_SECONDS)):
        if differing:
            raise Failed(f"rank {rank}: {len(differing)} tensors differ from eager mode, first {differing[:3]}")
    yield "bits of eager on one rank" if world == 1 else "bits of eager on several ranks"


if __name__ == "__main__":
    run_fuzzer("tests.steps.graph_fuzz", check_seed)
