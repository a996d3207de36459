"""Chunks take turns: the order of launches and waits, what lies under each exchange, and that nodes only move."""

import functools
from dataclasses import replace

import pytest

from monograph.errors import ConfigError
from monograph.graph.facts import Facts
from monograph.graph.tags import tag_of
from monograph.graph.verify import check_graph
from monograph.parallel.mesh import Mesh
from monograph.passes.check import clone_graph
from monograph.passes.config import PassesConfig
from monograph.passes.overlap.chunk_experts import ChunkExperts
from monograph.passes.overlap.overlap_experts import OverlapExperts, describe_plan
from monograph.passes.overlap.overlap_experts_options import OverlapExpertsConfig
from monograph.passes.overlap.overlap_plan import is_row_wait
from monograph.passes.overlap.simulate import is_exchange, play
from monograph.passes.runner import build_passes, run_passes
from tests.kit.machines import make_machine
from tests.kit.pipelines import capture_small
from tests.passes.chunk_toys import capture_stack

ROOMY = OverlapExpertsConfig(max_extra_bytes=1 << 20)
SLOW = make_machine(flops=2e8, memory=1e9, link=2e6, latency=50e-6)
"""A machine on which a tiny model's exchanges take about as long as its experts."""
BLOCKS = (
    "D0.0 D0.1 wD0.0 C0.0 wD0.1 C0.1 wC0.0 D1.0 wC0.1 D1.1 wD1.0 C1.0 wD1.1 C1.1 wC1.0 wC1.1 "
    "C'1.1 C'1.0 wC'1.1 D'1.1 wC'1.0 D'1.0 wD'1.1 C'0.1 wD'1.0 C'0.0 wC'0.1 D'0.1 wC'0.0 D'0.0"
)
EXPERTS = (
    "D0.0 D0.1 wD0.0 C0.0 wD0.1 C0.1 wC0.0 wC0.1 D1.0 D1.1 wD1.0 C1.0 wD1.1 C1.1 wC1.0 wC1.1 "
    "C'1.1 C'1.0 wC'1.1 D'1.1 wC'1.0 D'1.0 wD'1.0 wD'1.1 C'0.1 C'0.0 wC'0.1 D'0.1 wC'0.0 D'0.0"
)


@functools.cache
def _chunked(modules):
    changes = {"strategy": "graph", "modules": modules}
    changes = {f"compile.expert_overlap.{name}": value for name, value in changes.items()}
    graph, facts = capture_small("qwen3_moe", Mesh(dp_shard=2, ep=2), **{"training.local_batch_size": 4, **changes})
    run_passes(graph, build_passes(PassesConfig(off=("overlap_experts",))), facts, is_measured=False)
    return graph, facts


def chunked(modules="layers.*", machine=SLOW):
    graph, facts = _chunked(modules)
    return clone_graph(graph), replace(facts, machine=machine)


def list_exchanges(nodes):
    """D: dispatch, C: combine, their backward with a quote, each with block and chunk; w: the wait for it."""
    found = []
    for node in nodes:
        launch = node.args[0] if is_row_wait(node) else node
        if is_exchange(launch):
            tag = tag_of(launch)
            quote = "'" if tag.direction == "backward" else ""
            wait = "w" if launch is not node else ""
            found.append(f"{wait}{tag.region[0].upper()}{quote}{tag.block}.{tag.chunk}")
    return " ".join(found)


@pytest.mark.parametrize(
    ("modules", "wanted"), [("layers.*", BLOCKS), pytest.param("layers.*.moe", EXPERTS, marks=pytest.mark.long)]
)
def test_chunks_take_turns_and_the_next_block_starts_under_the_last_exchange(modules, wanted):
    graph, facts = chunked(modules)
    OverlapExperts(ROOMY).run(graph, facts)
    check_graph(graph, facts)
    assert list_exchanges(graph.nodes).startswith(wanted)


def test_nodes_only_move_and_the_model_finds_the_step_faster():
    graph, facts = chunked()
    before = graph.nodes
    plan = OverlapExperts(ROOMY).plan(graph, facts)
    slow = play(before, plan.costs)
    OverlapExperts(ROOMY).run(graph, facts)
    assert set(graph.nodes) == set(before)
    assert plan.busy == pytest.approx(slow.busy)
    assert plan.exposed_seconds < 0.1 * slow.exposed_seconds
    assert plan.now < slow.now


def test_a_plan_is_planned_without_writing_and_printed_exchange_by_exchange():
    graph, facts = chunked()
    order = graph.nodes
    plan = OverlapExperts(ROOMY).plan(graph, facts)
    assert graph.nodes == order
    lines = describe_plan(plan)
    assert len(lines) == 16
    assert lines[0].startswith("layers.0.moe forward dispatch chunk 0: 8192 bytes, 4146.0 us, ")
    assert lines[0].endswith("us of compute under it, 0.0 us exposed")


def test_without_room_in_memory_less_is_hidden():
    graph, facts = chunked()
    tight = OverlapExperts(ROOMY.replace(max_extra_bytes=0)).plan(graph, facts)
    roomy = OverlapExperts(ROOMY).plan(graph, facts)
    assert roomy.exposed_seconds < tight.exposed_seconds


def test_the_machine_decides_the_order():
    quick = make_machine(flops=2e8, memory=1e9, link=1e12, latency=0.0)
    orders = []
    for machine in (SLOW, quick):
        graph, facts = chunked(machine=machine)
        plan = OverlapExperts(ROOMY).plan(graph, facts)
        orders.append([node.name for node in plan.order])
    assert orders[0] != orders[1]
    assert OverlapExperts().reads_machine(Facts())


def test_a_schedule_for_chunks_that_exchange_nothing_is_refused():
    graph, facts = capture_stack()
    ChunkExperts().run(graph, facts)
    with pytest.raises(ConfigError, match="no chunk has an all_to_all"):
        OverlapExperts().run(graph, facts)
