"""Stages whose experts run chunk by chunk: the bits of the same chunks without a pipeline; what hides an exchange."""

from dataclasses import replace

import pytest
import torch

from monograph.capture.capture import capture
from monograph.execute.pipeline.build import make_sources
from monograph.graph.query import is_backward, is_compute
from monograph.graph.signature import OutputKind
from monograph.parallel.groups import fake_groups
from monograph.parallel.mesh import Mesh
from monograph.passes.overlap.overlap_experts import OverlapExperts
from monograph.passes.overlap.overlap_plan import find_ancestors, is_row_wait
from monograph.passes.runner import build_passes, run_passes
from monograph.run import plan_pipeline
from tests.parallel.pipeline.test_training import compare, configure
from tests.passes.test_overlap_experts import ROOMY, SLOW

ROOTS = "compile.expert_overlap.modules"


def chunked(strategy, *changes):
    overlap = ("compile.expert_overlap.strategy", strategy)
    return (overlap, ("training.local_batch_size", 4), ("training.global_batch_size", 8), *changes)


def test_chunked_stages_have_the_bits_of_one_device_with_the_same_chunks():
    """The first stage has no experts, the second gets its chunks from the pass."""
    changes = chunked("graph", ("passes.off", ("overlap_experts",)), ("model.n_layers", 2))
    compare("deepseek_v3", 2, 1, changes, pp=2, stages=("layers.1",))


@pytest.mark.long
@pytest.mark.parametrize(
    ("strategy", "schedule", "changes"),
    [
        ("trace", "1f1b", ()),
        ("graph", "1f1b", ()),
        ("graph", "zero_bubble", ((ROOTS, "layers.*.moe"), ("compile.expert_overlap.chunk_dim", "seq"))),
        ("trace", "zbv", (("compile.expert_overlap.chunk_dim", "seq"),)),
        ("trace", "1f1b", (("compile.mode", "eager"), ("parallelism.fsdp", "graph"))),
    ],
)
def test_spread_experts_of_stages_that_take_turns_have_the_bits_of_the_mesh_without_stages(strategy, schedule, changes):
    changes = chunked(strategy, ("training.global_batch_size", 16), *changes)
    compare("deepseek_v3", 2, 2, changes, pp=2, shard=2, ep=2, schedule=schedule)


@pytest.fixture(scope="module")
def middle_stage():
    """The second of three stages, a block in chunks, after all passes but the one that orders them."""
    changes = chunked("graph", ("training.global_batch_size", 16), ("model.n_layers", 3))
    config = configure("deepseek_v3", 2, changes, pp=3, shard=2, ep=2, stages=("layers.1", "layers.2"))
    with fake_groups(Mesh(pp=3, dp_shard=2, ep=2), 0, torch.device("cpu")) as groups:
        pipeline = plan_pipeline(config, groups)
        _, stages = make_sources(pipeline, groups, (1,))
        passes = [each for each in build_passes(config.passes) if not isinstance(each, OverlapExperts)]
        graph = capture(stages[1].source, stages[1].inputs)
        facts = replace(stages[1].facts(groups, pipeline.settings), machine=SLOW)
        run_passes(graph, passes, facts, is_measured=False)
        return graph, facts


@pytest.mark.parametrize("programs", [2, 3])
def test_only_work_of_the_same_program_lies_under_an_exchange(middle_stage, programs):
    graph, facts = middle_stage
    plan = OverlapExperts(ROOMY).plan(graph, replace(facts, programs=programs))
    pairs = zip(graph.outputs, graph.results, strict=True)
    handed_back = find_ancestors([node for spec, node in pairs if spec.kind is OutputKind.CARRY_GRADIENT])

    def find_program(node):
        return 0 if not is_backward(node) else 1 if programs == 2 or node in handed_back else 2

    order = [find_program(node) for node in plan.order if is_compute(node)]
    waits = [place for place, node in enumerate(n for n in plan.order if is_compute(n)) if is_row_wait(node)]
    assert len(waits) == 8, "two chunks dispatch and combine, forward and backward"
    assert order == sorted(order)
    assert {order[place] for place in waits} == {0, 1}
    whole = OverlapExperts(ROOMY).plan(graph, replace(facts, programs=1))
    assert plan.exposed_seconds > whole.exposed_seconds, "there is less to hide exchanges with"
