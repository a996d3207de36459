"""prefetch_all_gathers: the next block's parameters travel while this block computes, in both directions."""

import re

from monograph.parallel.mesh import Mesh
from monograph.passes.comm.prefetch_all_gathers_options import PrefetchAllGathersConfig
from monograph.passes.config import PassesConfig
from monograph.passes.runner import build_passes, run_passes
from tests.kit.pipelines import capture_small, make_pass


def order_of_events(graph):
    """`launch 0`, `wait 0`, ... of the gathers in the order they happen, by block; blocks' matmuls in between."""
    events = []
    for line in graph.text(folded=False).splitlines():
        head = re.match(r"(forward|backward)(?: block (\d+))?:", line)
        if head:
            block = head[2] or "-"
        elif "all_gather_into_tensor(" in line and "param_all_gather" in line:
            events.append(("launch", block))
        elif "wait_tensor" in line and "param_all_gather" in line:
            events.append(("wait", block))
        elif " mm(" in line and (not events or events[-1] != ("compute", block)):
            events.append(("compute", block))
    return events


def prepared(**options):
    graph, facts = capture_small(
        "llama3", Mesh(dp_shard=2), **{"model.n_layers": 3, "activation_checkpoint.mode": "full"}
    )
    config = PassesConfig(**options)
    names = (
        "remove_dead_code",
        "dedupe_all_gathers",
        "elide_trivial_collectives",
        "choose_saved",
        "recompute",
        "bucket_collectives",
    )
    run_passes(graph, [each for each in build_passes(config) if each.name() in names], facts, is_measured=False)
    return graph, facts, make_pass("prefetch_all_gathers", config)


def test_a_gather_is_under_way_while_the_block_before_computes_forward_and_backward():
    graph, facts, prefetch = prepared()
    before = order_of_events(graph)
    prefetch.run(graph, facts)
    after = order_of_events(graph)
    assert sorted(before) == sorted(after)
    for events, is_early in ((before, False), (after, True)):
        place = events.index(("launch", "1"))
        assert (place < events.index(("compute", "0"))) is is_early
    # The second launch of block 1 is backward's: before block 2 computes there, which is its second time.
    launches = [place for place, event in enumerate(after) if event == ("launch", "1")]
    computes = [place for place, event in enumerate(after) if event == ("compute", "2")]
    assert len(launches) == 2 and launches[1] < computes[1]


def test_further_ahead_means_earlier():
    indices = []
    for ahead in (1, 2):
        graph, facts, prefetch = prepared(prefetch_all_gathers=PrefetchAllGathersConfig(ahead=ahead))
        prefetch.run(graph, facts)
        events = order_of_events(graph)
        indices.append(sum(event[0] == "compute" for event in events[: events.index(("launch", "2"))]))
    assert indices[1] < indices[0]


def test_a_scatter_is_waited_for_after_the_next_one_started():
    graph, facts, prefetch = prepared()
    prefetch.run(graph, facts)
    lines = [line for line in graph.text(folded=False).splitlines() if "grad_reduce_scatter" in line]
    known = {"reduce_scatter_tensor": "launch", "wait_tensor": "wait"}
    steps = [what for line in lines for op, what in known.items() if f"= {op}(" in line]
    assert steps[:3] == ["launch", "launch", "wait"]
    assert steps.count("launch") == steps.count("wait")
